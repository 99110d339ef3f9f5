"""Operations of timm's policies that move pixels, as steps of a view."""

from collections.abc import Callable

from alltokens.geometry.view import View

# Each as Pillow's `Image.transform` and `Image.rotate` do it, which is what timm calls.
GEOMETRIC: dict[str, Callable[[View, float], View]] = {
    "shear_x": lambda view, factor: view.affine(((1, factor, 0), (0, 1, 0))),
    "shear_y": lambda view, factor: view.affine(((1, 0, 0), (factor, 1, 0))),
    "translate_x_abs": lambda view, pixels: view.translate(-pixels, 0),
    "translate_y_abs": lambda view, pixels: view.translate(0, -pixels),
    "translate_x_rel": lambda view, share: view.translate(-share * view.size[1], 0),
    "translate_y_rel": lambda view, share: view.translate(0, -share * view.size[0]),
    "rotate": lambda view, degrees: view.rotate(degrees),
}
"""The function timm has for an operation, by its name, as a step of a view."""
