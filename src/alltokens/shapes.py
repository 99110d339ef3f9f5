"""Shape annotations: jaxtyping's where it is installed (the tests enforce them), plain tensors otherwise."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxtyping import Bool as Bool
    from jaxtyping import Float as Float
    from jaxtyping import Int as Int
    from jaxtyping import UInt8 as UInt8
else:
    try:
        from jaxtyping import Bool, Float, Int, UInt8
    except ImportError:

        class Float:
            """`Float[Tensor, "b n d"]` is `Tensor`."""

            def __class_getitem__(cls, item):
                return item[0]

        Bool = Int = UInt8 = Float
