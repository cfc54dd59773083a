"""What a `decode_with` function returns, as bytes."""

import numpy


def numbers(made, dims, dtype):
    """The bytes of an array or tensor of shape `dims`, or of one array for each sample, of type `dtype`."""
    dtype = {"u8": "uint8", "f16": "float16", "f32": "float32"}[dtype]
    if isinstance(made, (list, tuple)):
        if len(made) != dims[0]:
            raise ValueError(f"a {type(made).__name__} of {len(made)}, not of {dims[0]}")
        made = numpy.stack([numpy.asarray(one) for one in made])
    made = numpy.asarray(made)
    # Axes of length 1 may be left out, and all be one. Else they have an order, which their product does not tell.
    axes, wanted = ([n for n in lengths[1:] if n != 1] for lengths in (made.shape, dims))
    if made.shape[:1] != (dims[0],) or axes not in (wanted, [numpy.prod(wanted)]) or made.dtype != dtype:
        raise ValueError(f"{made.dtype} of shape {made.shape}, not {dtype} of shape {tuple(dims)}")
    return numpy.ascontiguousarray(made).reshape(-1).view("uint8")
