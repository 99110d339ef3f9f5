"""`alltokens labels`: what a label store holds, whether it is whole, pictures of it, and other forms of it."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from PIL import Image
from tyro.conf import Positional

from alltokens.annotate.class_map import class_names, describe_class
from alltokens.cli.flags import parse
from alltokens.cli.table import print_table
from alltokens.errors import UserError, did_you_mean, require
from alltokens.explain.label_maps import contact_sheet, draw_score_map
from alltokens.files import write_atomically
from alltokens.labels.agreement import named_right, warn_below_zero
from alltokens.labels.meta import META, UNFINISHED
from alltokens.labels.pack import pack, unpack
from alltokens.labels.released import from_released, to_released
from alltokens.labels.store import LabelStore, require_match, require_same_rows, verify
from alltokens.progress import progress
from alltokens.sources.decode import Unreadable
from alltokens.sources.source import Source, open_source


@dataclass(frozen=True)
class Info:
    """What a label store holds, and by whom it was labelled."""

    store: Positional[Path]
    """A label store."""
    data: str | None = None
    """Its data set, to say how many of the images the labels name right."""
    split: str | None = None
    """Which split, for data sets that have several."""


@dataclass(frozen=True)
class Verify:
    """Compare every file of a label store with its checksum."""

    store: Positional[Path]
    """A label store."""


@dataclass(frozen=True)
class Show:
    """Draw score maps over their images."""

    store: Positional[Path]
    """A label store."""
    data: Positional[str]
    """Its data set."""
    keys: tuple[str, ...] = ()
    """Images to draw; none takes some that are spread over the data set."""
    count: int = 6
    """How many to draw where no keys are given."""
    output: Path = Path("labels.png")
    """The picture."""
    split: str | None = None
    """Which split, for data sets that have several."""

    def __post_init__(self) -> None:
        require(self.count >= 1, f"count must be at least 1; got count={self.count}")
        require(self.output.suffix == ".png", f"the picture is a .png file; got --output {self.output}")


@dataclass(frozen=True)
class Convert:
    """A store from released labels, a .pt file an image, or such files from a store."""

    source: Positional[Path]
    """A label store, or a folder of <class>/<image>.pt."""
    output: Positional[Path]
    """The folder of the other kind to write."""
    data: str | None = None
    """The data set of released labels: they lack the endings of its keys."""
    classes: int = 1000
    """How many classes released labels tell apart."""


@dataclass(frozen=True)
class Pack:
    """A label store as one compressed file, to copy or download."""

    store: Positional[Path]
    """A label store."""
    file: Positional[Path]
    """The .tar file to write."""


@dataclass(frozen=True)
class Unpack:
    """The label store that was packed, byte for byte."""

    file: Positional[Path]
    """What 'alltokens labels pack' wrote."""
    store: Positional[Path]
    """The folder to write."""


def run(arguments: list[str]) -> None:
    """Find what is asked for."""
    first, *rest = arguments or ["--help"]
    if first in ("-h", "--help"):
        print(overview())
    elif first in ACTIONS:
        action, flags = ACTIONS[first]
        action(parse(flags, rest, f"alltokens labels {first}"))
    else:
        raise UserError(f"unknown action '{first}' of labels{did_you_mean(first, ACTIONS)}")


def overview() -> str:
    """The actions that there are."""
    width = max(map(len, ACTIONS))
    lines = [f"  {name:<{width}}  {(flags.__doc__ or '').splitlines()[0]}" for name, (_, flags) in ACTIONS.items()]
    return "\n".join(
        ["usage: alltokens labels ACTION [OPTIONS]", "", *lines, "", "alltokens labels ACTION --help says more."]
    )


def info(flags: Info) -> None:
    """Print what is known of a store."""
    store = LabelStore(flags.store)
    plan = store.plan
    size = sum(path.stat().st_size for path in flags.store.rglob("*") if path.is_file())
    rows = [
        ["images", f"{len(store):,}"],
        ["without labels", f"{store.meta.unreadable:,}"],
        ["annotator", f"{plan.annotator}{', with its mirror images' if plan.flip else ''}"],
        ["its weights", f"{plan.weights_sha256[:12]}..." if plan.weights_sha256 else "not known"],
        [
            "it saw",
            f"{plan.fit} of {plan.image_size[0]} x {plan.image_size[1]} pixels" if plan.image_size[0] else "not known",
        ],
        ["classes", f"{len(plan.classes):,}{', mapped' if plan.class_map else ''}, the top {plan.top_k} in each cell"],
        ["cells", f"up to {plan.cells:,} an image"],
        ["decoder", f"{plan.decoder}, EXIF orientation {plan.exif}" if plan.decoder else "not known"],
        ["size", f"{size / 1e6:,.1f} MB in {plan.shards:,} shards, {size / len(store):,.0f} bytes an image"],
        ["format", str(plan.format)],
    ]
    if flags.data is not None:
        source = open_source(flags.data, flags.split)
        require_match(store, source)
        rows.append(["named right", f"{named_right(store, source):.1%} of the images, by the mean of their maps"])
    print_table(["label store", str(flags.store)], rows, left=["label store", str(flags.store)])
    warn_below_zero(store)


def verify_store(flags: Verify) -> None:
    """Say that it is whole, or what is not."""
    with progress("verifying", "files") as report:
        damage = verify(flags.store, report)
    for sentence in damage[1:]:
        print(sentence)
    if damage:
        raise UserError(damage[0])
    print(f"label store {flags.store} is whole")


def show(flags: Show) -> None:
    """Draw the maps of some images."""
    store, source = LabelStore(flags.store), open_source(flags.data, flags.split)
    require_same_rows(store, source)
    drawn = drawn_by_key(store, source, flags.keys) if flags.keys else drawn_of_all(store, source, flags.count)
    write_atomically(flags.output, lambda file: contact_sheet(list(drawn.values())).save(file, "PNG"))
    print(f"wrote {flags.output}, {len(drawn)} images: {', '.join(drawn)}")


def drawn_by_key(store: LabelStore, source: Source, keys: tuple[str, ...]) -> dict[str, Image.Image]:
    """The images asked for, all of them."""
    row_of = {key: row for row, key in enumerate(source.keys)}
    unknown = [key for key in keys if key not in row_of]
    if unknown:
        raise UserError(f"'{source.name}' has no image '{unknown[0]}'{did_you_mean(unknown[0], row_of)}")
    pictures = {}
    for key in keys:
        try:
            pictures[key] = picture(store, source, row_of[key])
        except Unreadable as error:
            raise UserError(f"'{key}' of '{source.name}' cannot be drawn: {error}; leave it out") from error
    return pictures


def drawn_of_all(store: LabelStore, source: Source, count: int) -> dict[str, Image.Image]:
    """Some that are spread over the data set, of those that can be read."""
    every = max(1, len(source) // count)

    def readable() -> Iterator[tuple[str, Image.Image]]:
        for row in range(every // 2, len(source), every):
            if source.keys[row] not in store.unreadable:
                with suppress(Unreadable):
                    yield source.keys[row], picture(store, source, row)

    pictures = dict(islice(readable(), count))
    require(bool(pictures), f"no image of '{source.name}' that was tried can be read; name others with --keys")
    return pictures


def picture(store: LabelStore, source: Source, row: int) -> Image.Image:
    """One image and its map; raises Unreadable."""
    score_map = store[source.keys[row]]
    return draw_score_map(source.image(row), score_map, lambda number: describe_class(store.classes[number]))


def convert(flags: Convert) -> None:
    """To the other form than that which is there."""
    is_store = (flags.source / META).exists() or (flags.source / UNFINISHED).exists()
    with progress("converting", "parts") as report:
        if is_store:
            to_released(flags.source, flags.output, report)
        else:
            source = None if flags.data is None else open_source(flags.data)
            from_released(flags.source, flags.output, class_names(flags.classes), source, report)
    print(f"wrote {flags.output}")


def pack_store(flags: Pack) -> None:
    """Compress a store."""
    with progress("packing", "shards") as report:
        pack(flags.store, flags.file, report)
    print(f"wrote {flags.file}, {flags.file.stat().st_size / 1e6:,.1f} MB")


def unpack_store(flags: Unpack) -> None:
    """Unpack and check a store."""
    with progress("unpacking", "shards") as report:
        unpack(flags.file, flags.store, report)
    print(f"wrote {flags.store}, every file as it was")


ACTIONS: dict[str, tuple[Callable[..., None], type]] = {
    "info": (info, Info),
    "verify": (verify_store, Verify),
    "show": (show, Show),
    "convert": (convert, Convert),
    "pack": (pack_store, Pack),
    "unpack": (unpack_store, Unpack),
}
