"""Every kind of picture becomes upright RGB, and bytes that are none say why."""

import random
import re
import struct
import tracemalloc
import warnings
import zlib

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps, PngImagePlugin

from alltokens.sources import decode as decode_module
from alltokens.sources.decode import ENDINGS, FORMATS, LARGEST, Opened, Unreadable, decode, open_upright

from .pictures import encoded, noise

NO_FORMAT = f"the image is damaged or not one of {', '.join(FORMATS)}"


def pixels(data: bytes | Image.Image) -> np.ndarray:
    image = decode(data)
    assert image.mode == "RGB"
    return np.asarray(image)


def reason(data: bytes | Image.Image) -> str:
    with pytest.raises(Unreadable) as caught:
        decode(data)
    return str(caught.value)


@pytest.mark.parametrize(
    ("format", "options"),
    [
        ("PNG", {}),
        ("BMP", {}),
        ("TIFF", {}),
        ("TIFF", {"compression": "tiff_lzw"}),
        ("PPM", {}),
        ("WEBP", {"lossless": True}),
    ],
)
def test_lossless_formats_come_out_as_they_went_in(format, options):
    assert np.array_equal(pixels(encoded(noise(), format, **options)), noise())


@pytest.mark.parametrize("format", ["JPEG", "MPO"])
def test_jpeg_is_what_pillow_decodes(format):
    data = encoded(
        noise(), format, **({"save_all": True, "append_images": [Image.new("RGB", (7, 5))]} if format == "MPO" else {})
    )
    assert np.array_equal(pixels(data), np.asarray(Image.open(decode_module.BytesIO(data))))


def test_one_pixel_is_an_image():
    assert pixels(encoded(noise(1, 1))).shape == (1, 1, 3)


def test_cmyk_has_the_colours_of_its_inks():
    inks = np.zeros((16, 16, 4), dtype=np.uint8)
    inks[..., 1:3] = 255  # magenta and yellow are red
    found = pixels(encoded(Image.fromarray(inks, "CMYK"), "JPEG"))
    assert np.abs(found.astype(int) - [255, 0, 0]).max() < 4


@pytest.mark.parametrize("transparency", [None, 0, bytes([0, 128, 255]), "colours"])
def test_a_palette_gives_its_colours_whatever_is_transparent(transparency):
    image = Image.fromarray(np.arange(6, dtype=np.uint8).reshape(2, 3) % 3, "P")
    palette = noise(1, 3)[0]
    image.putpalette(palette.tobytes())
    options = {} if transparency in (None, "colours") else {"transparency": transparency}
    data = encoded(image.convert("RGBA") if transparency == "colours" else image, "PNG", **options)
    assert np.array_equal(pixels(data), palette[np.arange(6).reshape(2, 3) % 3])


@pytest.mark.parametrize("mode", ["L", "LA", "1", "RGBA", "RGB", "PA", "RGBa", "YCbCr", "HSV", "RGBX", "CMYK"])
def test_an_image_in_another_mode_is_as_pillow_converts_it(mode):
    image = Image.fromarray(noise()).convert("LA" if mode == "PA" else "RGBA").convert(mode)
    assert np.array_equal(pixels(image), np.asarray(image.convert("RGB")))


def test_a_mode_that_pillow_cannot_convert_says_so():
    image = Image.new("La", (2, 2))
    assert reason(image) == "the image cannot be decoded (conversion from La to L not supported)"


@pytest.mark.parametrize("mode", ["LA", "RGBA"])
def test_transparency_is_left_out_and_colours_stay(mode):
    image = Image.fromarray(noise(channels=4), "RGBA").convert(mode)
    assert np.array_equal(pixels(encoded(image)), np.asarray(image.convert("RGB")))


def test_greyscale_of_sixteen_bits_is_scaled_to_eight():
    values = np.array([[0, 128, 129, 255, 256, 32768, 65535]], dtype=np.uint16)
    expected = np.round(values / 65535 * 255).astype(np.uint8)
    little, big = Image.fromarray(values), Image.frombytes("I;16B", (7, 1), values.astype(">u2").tobytes())
    assert (little.mode, big.mode) == ("I;16", "I;16B")
    portable = b"P5 7 1 65535\n" + values.astype(">u2").tobytes()
    forms = [little, big, Image.fromarray(values.astype(np.int32)), encoded(little), encoded(little, "TIFF"), portable]
    for form in forms:
        assert np.array_equal(pixels(form), np.repeat(expected[..., None], 3, axis=2))


def test_every_value_of_sixteen_bits_is_rounded_to_the_nearest_of_eight():
    values = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    assert np.array_equal(pixels(Image.fromarray(values))[..., 0], np.round(values / 257).astype(np.uint8))


@pytest.mark.parametrize("values", [[-1, 5], [0, 65536]])
def test_values_outside_of_sixteen_bits_are_refused(values):
    image = Image.fromarray(np.array([values], dtype=np.int32))
    sentence = f"the image has values from {values[0]} to {values[1]}, outside of 16 bits"
    assert reason(image) == sentence
    assert reason(encoded(image, "TIFF")) == sentence


def test_floating_point_pixels_are_refused():
    data = encoded(Image.fromarray(np.zeros((2, 2), dtype=np.float32)), "TIFF")
    assert reason(data) == "the image has floating-point pixels, whose range is not known"


@pytest.mark.parametrize("format", ["GIF", "WEBP", "PNG", "TIFF"])
def test_the_first_frame_of_an_animation_is_taken(format):
    frames = [Image.new("RGB", (4, 4), color) for color in ("red", "lime", "blue")]
    options = {"lossless": True} if format == "WEBP" else {}
    data = encoded(frames[0], format, save_all=True, append_images=frames[1:], **options)
    assert np.array_equal(pixels(data), np.asarray(frames[0]))


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("tag", range(1, 9))
def test_the_orientation_tag_is_applied_once(format, tag):
    exif = Image.Exif()
    exif[0x0112] = tag
    data = encoded(np.kron(noise(2, 3), np.ones((8, 8, 1), np.uint8)), format, exif=exif)
    image = decode(data)
    expected = ImageOps.exif_transpose(Image.open(decode_module.BytesIO(data))).convert("RGB")
    assert image.size == ((16, 24) if tag >= 5 else (24, 16))
    assert np.array_equal(np.asarray(image), np.asarray(expected))
    assert np.array_equal(pixels(image), np.asarray(image))


@pytest.mark.parametrize(
    ("tag", "turn"),
    [
        (1, lambda x: x),
        (2, lambda x: x[:, ::-1]),
        (3, lambda x: x[::-1, ::-1]),
        (4, lambda x: x[::-1]),
        (5, lambda x: x.transpose(1, 0, 2)),
        (6, lambda x: np.rot90(x, -1)),
        (7, lambda x: x[::-1, ::-1].transpose(1, 0, 2)),
        (8, lambda x: np.rot90(x)),
    ],
)
def test_each_orientation_is_turned_by_its_definition(tag, turn):
    exif = Image.Exif()
    exif[0x0112] = tag
    assert np.array_equal(pixels(encoded(noise(), exif=exif)), turn(noise()))


def test_the_tag_of_an_image_that_is_already_decoded_is_applied():
    exif = Image.Exif()
    exif[0x0112] = 6
    image = Image.open(decode_module.BytesIO(encoded(noise(), exif=exif))).convert("RGB")
    assert np.array_equal(pixels(image), np.rot90(noise(), -1))


@pytest.mark.parametrize(
    "tags", [b"Exif\0\0garbage", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0", b"Exif\0\0MM\0*\0\0\0\x08\xff\xff"]
)
def test_a_damaged_tag_leaves_the_image_as_it_is(tags):
    data = encoded(noise(), "JPEG")
    plain = pixels(data)
    marked = data[:2] + b"\xff\xe1" + struct.pack(">H", len(tags) + 2) + tags + data[2:]
    assert np.array_equal(pixels(marked), plain)


def test_an_image_that_is_given_is_not_changed():
    image = Image.fromarray(noise())
    image.info["kept"] = True
    decode(image)
    assert image.info == {"kept": True}


@pytest.mark.parametrize("format", ["JPEG", "PNG", "GIF", "BMP"])
def test_a_truncated_image_is_refused(format):
    data = encoded(noise(40, 40), format)
    assert re.fullmatch(
        r"the image cannot be decoded \(.*(truncated|broken data stream|unrecognized).*\)",
        reason(data[: len(data) * 2 // 3]),
    )


# Scales


def opened(image: np.ndarray | Image.Image = None, format: str = "JPEG", **options):
    return open_upright(encoded(noise(37, 50) if image is None else image, format, **options))


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("scale", [1, 2, 4, 8])
def test_a_jpeg_at_a_scale_is_what_pillow_drafts(scale, mode):
    data = encoded(Image.fromarray(noise(37, 50)).convert(mode), "JPEG")
    drafted = Image.open(decode_module.BytesIO(data))
    drafted.draft(None, (50 // scale, 37 // scale))
    found = open_upright(data).decoded(scale)
    assert (found.mode, found.size) == ("RGB", (-(-50 // scale), -(-37 // scale)))
    assert found.tobytes() == drafted.convert("RGB").tobytes()


def test_the_size_of_a_jpeg_is_known_before_it_is_decoded(monkeypatch):
    image = opened()
    monkeypatch.setattr("PIL.JpegImagePlugin.JpegImageFile.load_prepare", lambda _: pytest.fail("it was decoded"))
    assert (opened().size, image.scales) == ((37, 50), (1, 2, 4, 8))


@pytest.mark.parametrize("scale", [1, 2, 4, 8])
def test_a_scale_is_offered_where_a_pixel_is_left(scale):
    small = opened(noise(scale, 40))
    assert small.scales[-1] == scale
    assert small.decoded(scale).size == (40 // scale, 1)
    assert opened(noise(max(1, scale - 1), 40)).scales[-1] < scale or scale == 1


@pytest.mark.parametrize("format", ["PNG", "WEBP", "BMP"])
def test_other_formats_are_decoded_whole(format):
    image = opened(format=format)
    assert (image.size, image.scales) == ((37, 50), (1,))


@pytest.mark.parametrize("tag", range(1, 9))
def test_a_jpeg_that_is_to_be_turned_is_decoded_whole_and_has_the_size_it_is_turned_to(tag):
    exif = Image.Exif()
    exif[0x0112] = tag
    image = opened(exif=exif)
    assert image.size == ((50, 37) if tag >= 5 else (37, 50))
    assert image.scales == ((1, 2, 4, 8) if tag == 1 else (1,))
    assert image.decoded().size == image.size[::-1]


def test_a_jpeg_that_is_damaged_after_its_header_is_refused_when_it_is_decoded():
    data = encoded(noise(40, 40), "JPEG")
    image = open_upright(data[: len(data) * 2 // 3])
    with pytest.raises(Unreadable, match=r"^the image cannot be decoded \(.*truncated.*\)$"):
        image.decoded()


# As a tensor


@pytest.fixture
def pillow_is_asked(monkeypatch) -> list[int]:
    """For what it is asked to open."""
    asked: list[int] = []
    usual = decode_module.open_image
    monkeypatch.setattr(decode_module, "open_image", lambda data: asked.append(len(data)) or usual(data))
    return asked


def pixels_by_pillow(data: bytes) -> torch.Tensor:
    image = ImageOps.exif_transpose(Image.open(decode_module.BytesIO(data))).convert("RGB")
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


@pytest.mark.parametrize("size", [(37, 50), (64, 48), (1, 1), (8, 1), (131, 17)])
@pytest.mark.parametrize(
    "options", [{"progressive": True}, {"optimize": True}, {"quality": 20}, {"restart_marker_rows": 1}]
)
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
def test_a_plain_jpeg_is_decoded_to_the_bytes_that_pillow_makes_of_it(size, options, subsampling, pillow_is_asked):
    data = encoded(noise(*size), "JPEG", subsampling=subsampling, **options)
    assert torch.equal(open_upright(data).pixels(), pixels_by_pillow(data))
    assert not pillow_is_asked


def test_without_simplejpeg_pillow_decodes_to_the_same(monkeypatch, pillow_is_asked):
    data = encoded(noise(37, 50), "JPEG")
    expected = open_upright(data).pixels()
    monkeypatch.setattr(decode_module, "simplejpeg", None)
    assert torch.equal(open_upright(data).pixels(), expected)
    assert pillow_is_asked


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_a_jpeg_in_other_colours_is_left_to_pillow(mode, pillow_is_asked):
    data = encoded(Image.fromarray(noise(37, 50)).convert(mode), "JPEG")
    assert torch.equal(open_upright(data).pixels(), pixels_by_pillow(data))
    assert pillow_is_asked


@pytest.mark.parametrize("tag", range(1, 9))
def test_a_jpeg_is_turned_by_its_exif_behind_any_other_segment(tag):
    exif = Image.Exif()
    exif[0x0112] = tag
    data = encoded(noise(37, 50), "JPEG", exif=exif)
    # In another program's segment bytes stand that would begin the pixels.
    other = b"\xff\xed" + (2 + 4).to_bytes(2, "big") + b"\xff\xda\0\0"
    behind = data[:2] + other + data[2:]
    assert torch.equal(open_upright(behind).pixels(), pixels_by_pillow(data))


def test_a_jpeg_is_turned_by_its_xmp():
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    image = opened(xmp=xmp)
    assert (image.size, image.pixels().shape) == ((50, 37), (3, 50, 37))


@pytest.mark.parametrize(("format", "scale"), [("JPEG", 1), ("JPEG", 2), ("JPEG", 4), ("JPEG", 8), ("PNG", 1)])
def test_a_tensor_at_a_scale_has_the_pixels_of_the_image(format, scale):
    expected = torch.from_numpy(np.array(opened(format=format).decoded(scale))).permute(2, 0, 1)
    assert torch.equal(opened(format=format).pixels(scale), expected)


def test_whether_a_damaged_jpeg_is_read_is_for_pillow_to_say():
    data = encoded(noise(40, 40), "JPEG")
    with pytest.raises(Unreadable, match=r"^the image cannot be decoded \(.*truncated.*\)$"):
        open_upright(data[: len(data) * 2 // 3]).pixels()
    # Bytes between two segments, over which libjpeg only warns.
    odd = data[:-2] + b"\0\0\0" + data[-2:]
    assert torch.equal(open_upright(odd).pixels(), pixels_by_pillow(odd))


@pytest.mark.parametrize("length", range(2, 40))
def test_a_jpeg_that_ends_in_its_header_is_refused(length):
    with pytest.raises(Unreadable):
        open_upright(encoded(noise(40, 40), "JPEG")[:length]).pixels()


def test_an_empty_image_is_refused():
    assert reason(b"") == "the image is empty"


@pytest.mark.parametrize(
    "data",
    [b"hello", b"\0", b"<html></html>", b"\xff\xd8\xff", "Grüße\n".encode() * 100],
    ids=["text", "null", "html", "start of a JPEG", "long text"],
)
def test_what_is_no_image_is_refused(data):
    assert reason(data) == NO_FORMAT


def test_a_format_that_starts_a_program_is_not_read():
    assert reason(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n") == NO_FORMAT


def test_formats_that_are_not_listed_are_not_read():
    assert reason(encoded(noise(), "TGA")) == NO_FORMAT
    assert reason(encoded(noise(), "PCX")) == NO_FORMAT


def test_endings_are_those_of_the_formats():
    Image.init()
    of_formats = {ending for ending, format in Image.registered_extensions().items() if format in FORMATS}
    assert set(ENDINGS) <= of_formats
    assert {Image.registered_extensions()[ending] for ending in ENDINGS} == set(FORMATS)


def png_claiming(width: int, height: int) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


def jpeg_claiming(width: int, height: int) -> bytes:
    data = encoded(noise(8, 8), "JPEG")
    size = data.index(b"\xff\xc0") + 5
    return data[:size] + struct.pack(">HH", height, width) + data[size + 4 :]


BOMBS = {
    "JPEG": jpeg_claiming(60000, 60000),
    "PNG": png_claiming(60000, 60000),
    "PNG just above": png_claiming(LARGEST + 1, 1),
    "PPM": b"P6 60000 60000 255\n" + bytes(100),
    "GIF": b"GIF89a" + struct.pack("<HH", 60000, 60000) + b"\0\0\0,\0\0\0\0\x01\0\x01\0\0\x02\x02D\x01\0;",
    "BMP": b"BM" + struct.pack("<IIIIiiHHIIiiII", 200, 0, 54, 40, 60000, 60000, 1, 24, 0, 0, 0, 0, 0, 0) + bytes(100),
}


@pytest.mark.parametrize("kind", BOMBS)
def test_a_bomb_is_refused_before_it_takes_memory(kind, monkeypatch):
    def no_pixels(*_):
        raise AssertionError("pixels were decoded")

    monkeypatch.setattr(decode_module.Image.Image, "load", no_pixels)
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", no_pixels)
    tracemalloc.start()
    try:
        assert reason(BOMBS[kind]) == "the image has more than 89,478,485 pixels"
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_an_image_of_the_largest_size_is_not_taken_for_a_bomb():
    assert reason(png_claiming(LARGEST, 1)).startswith("the image cannot be decoded (")


def test_the_limit_holds_where_pillows_own_is_switched_off(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    assert reason(BOMBS["PNG"]) == "the image has more than 89,478,485 pixels"


def test_a_text_chunk_that_would_fill_the_memory_is_refused():
    information = PngImagePlugin.PngInfo()
    information.add_text("comment", "a" * 10**7, zip=True)
    assert reason(encoded(noise(), pnginfo=information)).startswith("the image cannot be decoded (")


def test_warnings_of_pillow_do_not_escape():
    image = Image.fromarray(np.zeros((2, 2), dtype=np.uint8), "P")
    image.putpalette(bytes(6))
    image.info["transparency"] = b"\0\x80"
    with pytest.warns(UserWarning, match="Transparency"):
        image.convert("RGB")
    with warnings.catch_warnings(record=True) as escaped:
        warnings.simplefilter("always")
        decode(image)
    assert escaped == []


SEEDS = {
    "JPEG": encoded(noise(9, 9), "JPEG"),
    "progressive JPEG": encoded(
        noise(9, 9),
        "JPEG",
        progressive=True,
        exif=b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0",
    ),
    "PNG": encoded(noise(9, 9)),
    "palette PNG": encoded(Image.fromarray(noise(9, 9)).convert("P"), transparency=3),
    "GIF": encoded(noise(9, 9), "GIF"),
    "WEBP": encoded(noise(9, 9), "WEBP"),
    "TIFF": encoded(noise(9, 9), "TIFF"),
    "LZW TIFF": encoded(noise(9, 9), "TIFF", compression="tiff_lzw"),
    "BMP": encoded(noise(9, 9), "BMP"),
    "PPM": encoded(noise(9, 9), "PPM"),
}


def corrupted(data: bytes, draw: random.Random) -> bytes:
    """Bytes changed, cut out, put in or cut off, mostly in the header."""
    content = bytearray(data)
    for _ in range(draw.randint(1, 6)):
        place = draw.randrange(min(len(content), draw.choice([16, 64, 10**6])) or 1)
        kind = draw.randrange(4)
        if kind == 0:
            content[place : place + 1] = bytes([draw.choice([0, 1, 127, 128, 255, draw.randrange(256)])])
        elif kind == 1:
            del content[place : place + draw.randint(1, 8)]
        elif kind == 2:
            content[place:place] = draw.randbytes(draw.randint(1, 8))
        elif draw.random() < 0.3:
            del content[place:]
    return bytes(content)


@pytest.mark.parametrize("kind", SEEDS)
def test_corrupted_files_are_images_or_unreadable_and_nothing_else(kind):
    draw = random.Random(0)
    reasons = []
    for _ in range(300):
        try:
            assert decode(corrupted(SEEDS[kind], draw)).mode == "RGB"
        except Unreadable as error:
            reasons.append(str(error))
    assert len(reasons) > 30
    assert all(reason.startswith("the image ") and "\n" not in reason and " at 0x" not in reason for reason in reasons)


@pytest.mark.parametrize("kind", ["JPEG", "progressive JPEG"])
def test_a_corrupted_file_is_the_same_as_a_tensor_or_is_as_unreadable(kind):
    def found(opened: Opened, as_tensor: bool) -> bytes | str:
        try:
            return opened.pixels().permute(1, 2, 0).numpy().tobytes() if as_tensor else opened.decoded().tobytes()
        except Unreadable as error:
            return str(error)

    draw, whole = random.Random(1), 0
    for _ in range(300):
        data = corrupted(SEEDS[kind], draw)
        try:
            tensor, image = found(open_upright(data), True), found(open_upright(data), False)
        except Unreadable:
            continue
        assert tensor == image
        whole += isinstance(tensor, bytes)
    assert whole > 10
