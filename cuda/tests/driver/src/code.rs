//! The result codes of CUDA that this driver returns or can be told to return, with their names. Owns the table.

/// A `CUresult`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(transparent)]
pub struct Code(pub i32);

/// What every entry point comes to.
pub(crate) type Outcome<T = ()> = Result<T, Code>;

macro_rules! codes {
    ($($name:ident = $value:literal, $long:literal;)*) => {
        impl Code {
            $(#[doc = concat!("`", $long, "`")] pub const $name: Code = Code($value);)*
        }
        const TABLE: &[(i32, &std::ffi::CStr)] = &[$(($value, match std::ffi::CStr::from_bytes_with_nul(
            concat!($long, "\0").as_bytes()) { Ok(name) => name, Err(_) => c"" })),*];
    };
}

codes! {
    SUCCESS = 0, "CUDA_SUCCESS";
    INVALID_VALUE = 1, "CUDA_ERROR_INVALID_VALUE";
    OUT_OF_MEMORY = 2, "CUDA_ERROR_OUT_OF_MEMORY";
    NOT_INITIALIZED = 3, "CUDA_ERROR_NOT_INITIALIZED";
    NO_DEVICE = 100, "CUDA_ERROR_NO_DEVICE";
    INVALID_DEVICE = 101, "CUDA_ERROR_INVALID_DEVICE";
    INVALID_CONTEXT = 201, "CUDA_ERROR_INVALID_CONTEXT";
    ECC_UNCORRECTABLE = 214, "CUDA_ERROR_ECC_UNCORRECTABLE";
    OPERATING_SYSTEM = 304, "CUDA_ERROR_OPERATING_SYSTEM";
    INVALID_HANDLE = 400, "CUDA_ERROR_INVALID_HANDLE";
    NOT_READY = 600, "CUDA_ERROR_NOT_READY";
    ILLEGAL_ADDRESS = 700, "CUDA_ERROR_ILLEGAL_ADDRESS";
    CONTEXT_IS_DESTROYED = 709, "CUDA_ERROR_CONTEXT_IS_DESTROYED";
    HOST_MEMORY_ALREADY_REGISTERED = 712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED";
    HOST_MEMORY_NOT_REGISTERED = 713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED";
    LAUNCH_FAILED = 719, "CUDA_ERROR_LAUNCH_FAILED";
    NOT_PERMITTED = 800, "CUDA_ERROR_NOT_PERMITTED";
    NOT_SUPPORTED = 801, "CUDA_ERROR_NOT_SUPPORTED";
    STREAM_CAPTURE_UNSUPPORTED = 900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED";
    STREAM_CAPTURE_INVALIDATED = 901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED";
    UNKNOWN = 999, "CUDA_ERROR_UNKNOWN";
}

impl Code {
    /// Its name as CUDA spells it; nothing for a number that this driver does not know.
    pub fn name(self) -> Option<&'static std::ffi::CStr> {
        TABLE.iter().find(|(value, _)| *value == self.0).map(|(_, name)| *name)
    }

    /// The code of that name.
    pub fn named(name: &str) -> Option<Code> {
        TABLE.iter().find(|(_, n)| n.to_bytes() == name.as_bytes()).map(|(value, _)| Code(*value))
    }
}

impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.name() {
            Some(name) => f.write_str(&name.to_string_lossy()),
            None => write!(f, "CUresult {}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_to_their_codes() {
        for (value, name) in TABLE {
            assert_eq!(Code::named(name.to_str().unwrap()), Some(Code(*value)));
            assert_eq!(Code(*value).to_string(), name.to_str().unwrap());
        }
        assert_eq!(Code(46).name(), None);
        assert_eq!(Code::named("CUDA_ERROR_DEVICE_UNAVAILABLE"), None);
    }
}
