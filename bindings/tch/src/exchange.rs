//! Messages between ranks besides gradients: bytes, and the losses of their samples.

use crate::ffi::{Group, tensor_of_bytes};
use fuelrail_base::{Error, Kind, Result, SampleId};
use tch::{Kind as Element, Tensor};

impl Group {
    /// Every rank gets the bytes of `root`; the others' are ignored.
    pub(crate) fn broadcast_bytes(&self, bytes: Vec<u8>, root: usize) -> Result<Vec<u8>> {
        let mut length = Tensor::from_slice(&[bytes.len() as i64]);
        self.broadcast(&mut length, root)?;
        let length = length.int64_value(&[0]);
        let own = if self.rank() == root { bytes } else { vec![0; usize::try_from(length).unwrap_or(0)] };
        let mut tensor = tensor_of_bytes(own, &[length], Element::Uint8)?;
        if length > 0 {
            self.broadcast(&mut tensor, root)?;
        }
        bytes_of(&tensor)
    }

    /// The bytes of every rank, in order.
    pub(crate) fn gather_bytes(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let lengths = self.all_gather(&Tensor::from_slice(&[bytes.len() as i64]))?;
        let lengths: Vec<usize> = (0..self.world()).map(|r| lengths.int64_value(&[r as i64, 0]) as usize).collect();
        let longest = lengths.iter().copied().max().unwrap_or(0);
        if longest == 0 {
            return Ok(vec![Vec::new(); self.world()]);
        }
        let mut padded = bytes.to_vec();
        padded.resize(longest, 0);
        let all = self.all_gather(&tensor_of_bytes(padded, &[longest as i64], Element::Uint8)?)?;
        lengths
            .iter()
            .enumerate()
            .map(|(rank, &len)| bytes_of(&all.get(rank as i64).narrow(0, 0, len as i64)))
            .collect()
    }

    /// Checks that all ranks say the same of something.
    ///
    /// # Errors
    /// `Usage` where they differ, with what two ranks say; as [`Group::gather_losses`].
    pub fn agree(&self, what: &str, own: &str) -> Result<()> {
        let all = self.gather_bytes(own.as_bytes())?;
        let Some(other) = all.iter().position(|said| *said != all[0]) else { return Ok(()) };
        let [first, second] = [&all[0], &all[other]].map(|said| String::from_utf8_lossy(said).into_owned());
        let cause = format!("ranks differ in {what}: rank 0 has {first}, rank {other} has {second}");
        Err(Error::new(Kind::Usage, cause).with_hint("start again, with the same options and data on all ranks"))
    }

    /// The losses of every rank's samples by id, rank by rank: the same list on every rank.
    ///
    /// # Errors
    /// `Environment` when another rank died, or did not come in time; `Protocol` when it sent something else.
    pub fn gather_losses(&self, own: &[(SampleId, f32)]) -> Result<Vec<(SampleId, f32)>> {
        let bytes: Vec<u8> =
            own.iter().flat_map(|(id, loss)| [&id.0.to_le_bytes()[..], &loss.to_le_bytes()].concat()).collect();
        let all = self.gather_bytes(&bytes)?.concat();
        let (pairs, rest) = all.as_chunks::<12>();
        if !rest.is_empty() {
            return Err(Error::new(Kind::Protocol, "a rank sent losses that are no pairs of id and loss"));
        }
        Ok(pairs
            .iter()
            .map(|[a, b, c, d, e, f, g, h, loss @ ..]| {
                (SampleId(u64::from_le_bytes([*a, *b, *c, *d, *e, *f, *g, *h])), f32::from_le_bytes(*loss))
            })
            .collect())
    }
}

/// The first numbers of a tensor of floats.
pub(crate) fn floats_of<const N: usize>(tensor: &Tensor) -> [f64; N] {
    core::array::from_fn(|i| tensor.double_value(&[i as i64]))
}

/// The bytes of a tensor, wherever it is.
pub(crate) fn bytes_of(tensor: &Tensor) -> Result<Vec<u8>> {
    let flat = tensor.to_device(tch::Device::Cpu).contiguous();
    let mut bytes = vec![0; flat.numel() * flat.kind().elt_size_in_bytes()];
    flat.f_copy_data_u8(&mut bytes, flat.numel())
        .map_err(|e| Error::new(Kind::Environment, format!("reading a tensor: {e}")))?;
    Ok(bytes)
}
