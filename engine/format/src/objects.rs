//! Objects as records: the key without its extension is the record's, the extension the field's name.

/// A key without its extension, and the extension in lower case: what follows the last dot of the last component, empty where there is none.
/// `None` for a key that ends with a slash, which is no sample.
pub fn split(key: &str) -> Option<(&str, String)> {
    let name = key.rfind('/').map_or(0, |slash| slash + 1);
    let dot = key[name..].rfind('.').map_or(key.len(), |dot| name + dot);
    (name < key.len()).then(|| (&key[..dot], key.get(dot + 1..).unwrap_or_default().to_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn the_extension_is_behind_the_last_dot_of_the_last_component() {
        for (key, stem, extension) in [
            ("a.txt", "a", "txt"),
            ("cat/1.JPG", "cat/1", "jpg"),
            ("x.y/z", "x.y/z", ""),
            ("x/dog/b.c.jpg", "x/dog/b.c", "jpg"),
            (".a", "", "a"),
            ("a.", "a", ""),
        ] {
            assert_eq!(split(key), Some((stem, extension.to_owned())), "{key}");
        }
        assert_eq!((split("cat/"), split("")), (None, None));
    }
}
