//! A table of fixed capacity whose entries are named by index and generation: a name goes stale when its entry leaves,
//! and is never mistaken for a later one in the same place (generations wrap after 2^32 reuses of one place). The ids of a ring are
//! such names.

/// Name of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Name {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl Name {
    /// The name of no entry.
    pub(crate) const NONE: Name = Name { index: u32::MAX, generation: u32::MAX };

    /// As one number, for the kernel's user data.
    pub(crate) fn to_bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    pub(crate) fn from_bits(bits: u64) -> Name {
        Name { index: bits as u32, generation: (bits >> 32) as u32 }
    }
}

/// Public names of entries, each of a type of its own.
macro_rules! ids {
    ($($(#[$doc:meta])* $id:ident)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub struct $id {
            pub(crate) index: u32,
            pub(crate) generation: u32,
        }

        impl From<$id> for Name {
            fn from(id: $id) -> Name {
                Name { index: id.index, generation: id.generation }
            }
        }

        impl From<Name> for $id {
            fn from(name: Name) -> $id {
                $id { index: name.index, generation: name.generation }
            }
        }
    )*};
}

ids! {
    /// A socket of one ring. Stale as soon as the socket is closed, and never mistaken for a later one.
    SockId
    /// An open file of one ring. Stale as soon as the file is closed, and never mistaken for a later one.
    FileId
    /// An operation in a ring. Stale as soon as the operation is popped, and never mistaken for a later one.
    OpId
}

#[derive(Debug)]
pub(crate) struct Table<T> {
    places: Box<[Place<T>]>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Place<T> {
    generation: u32,
    entry: Option<T>,
}

impl<T> Table<T> {
    pub(crate) fn new(capacity: u32) -> Table<T> {
        Table {
            places: (0..capacity).map(|_| Place { generation: 0, entry: None }).collect(),
            free: (0..capacity).rev().collect(),
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Adds an entry; gives it back when the table is full.
    pub(crate) fn insert(&mut self, entry: T) -> Result<Name, T> {
        let Some(index) = self.free.pop() else { return Err(entry) };
        let place = &mut self.places[index as usize];
        place.entry = Some(entry);
        Ok(Name { index, generation: place.generation })
    }

    pub(crate) fn get(&self, name: Name) -> Option<&T> {
        self.places.get(name.index as usize).filter(|place| place.generation == name.generation)?.entry.as_ref()
    }

    pub(crate) fn get_mut(&mut self, name: Name) -> Option<&mut T> {
        let place = self.places.get_mut(name.index as usize)?;
        if place.generation == name.generation { place.entry.as_mut() } else { None }
    }

    pub(crate) fn remove(&mut self, name: Name) -> Option<T> {
        let place = self.places.get_mut(name.index as usize)?;
        if place.generation != name.generation {
            return None;
        }
        let entry = place.entry.take()?;
        place.generation = place.generation.wrapping_add(1);
        self.free.push(name.index);
        Some(entry)
    }

    /// Names and entries, by place.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Name, &T)> {
        self.places.iter().enumerate().filter_map(|(index, place)| {
            let name = Name { index: index as u32, generation: place.generation };
            place.entry.as_ref().map(|entry| (name, entry))
        })
    }
}
