"""A data set's images, one by one, with keys and classes, whatever they are stored in."""

import os
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate
from typing import TypeVar, overload

import numpy as np
from PIL import Image

from alltokens.errors import UserError
from alltokens.sources.decode import ENDINGS, Opened, Unreadable, open_upright

Item = TypeVar("Item")


@dataclass(frozen=True)
class Computed(Sequence[Item]):
    """A sequence whose items are made when they are asked for: little to hold, little to send to workers."""

    length: int
    item: Callable[[int], Item]

    def __len__(self) -> int:
        return self.length

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | list[Item]:
        places = range(self.length)[index]
        return self.item(places) if isinstance(places, int) else [self.item(place) for place in places]


@dataclass(frozen=True)
class Names:
    """Many file names in one piece of memory: as a million strings each worker would come to copy them."""

    data: bytes
    ends: Sequence[int]

    @classmethod
    def of(cls, names: Iterable[bytes]) -> "Names":
        names = list(names)
        return cls(b"".join(names), array("q", accumulate(map(len, names), initial=0)))

    def raw(self, index: int) -> bytes:
        return self.data[self.ends[index] : self.ends[index + 1]]

    def __call__(self, index: int) -> str:
        return text(self.raw(index))

    def keys(self) -> Computed[str]:
        return Computed(len(self.ends) - 1, self)


def text(name: bytes) -> str:
    r"""A file name as text that can be written anywhere; bytes that are no UTF-8 become `\xff`."""
    return name.decode("utf-8", "backslashreplace")


@dataclass(frozen=True)
class Source:
    """Images with keys and classes; it goes to worker processes by fork or by pickle."""

    name: str
    """As the user gave it."""
    keys: Sequence[str]
    """Distinct; relative paths with forward slashes, or row numbers where there are no paths."""
    labels: Sequence[int]
    """The class of each image, -1 where it has none."""
    classes: Sequence[str]
    """Names of the classes, () where there are none."""
    load: Callable[[int], bytes | Image.Image]
    """What is stored for an image, not yet decoded."""
    split: str = ""
    """The split, where keys are row numbers, which are the same in each of them; empty where it is not known."""
    labels_sha256: str = ""
    """Of the classes of all rows that are numbered, for a part of them too; empty where keys are paths, and where the
    classes are not known before each image is read."""

    def __post_init__(self) -> None:
        assert len(self.keys) == len(self.labels)
        if not len(self.keys):
            raise UserError(
                f"there is no image in '{self.name}'; files that end in {', '.join(ENDINGS)} are taken as images"
            )
        if len(set(self.keys)) < len(self.keys):
            repeated = [key for key, count in Counter(self.keys).items() if count > 1]
            raise UserError(
                f"'{self.name}' has {len(repeated)} keys more than once, such as {', '.join(repeated[:3])}; "
                "give each image a name of its own"
            )

    def __len__(self) -> int:
        return len(self.keys)

    def image(self, index: int) -> Image.Image:
        """The decoded image, RGB; raises Unreadable."""
        return self.opened(index).decoded()

    def opened(self, index: int) -> Opened:
        """The image before it is decoded, where its format allows; raises Unreadable."""
        try:
            data = self.load(index)
        except OSError as error:
            raise Unreadable(f"the image cannot be read ({error.strerror or error})") from error
        return open_upright(data)


def sha256_of(labels: Sequence[int]) -> str:
    """Tells one sequence of rows from another by their classes: all that is known of rows without reading images."""
    return sha256(np.asarray(labels, "<i4").tobytes()).hexdigest()


def open_source(data: str, split: str | None = None) -> Source:
    """Tell what the data is stored in, and open it."""
    # Each of them makes a Source, and so imports this file.
    from alltokens.sources.folder import open_folder
    from alltokens.sources.hugging_face import is_hugging_face, open_hugging_face
    from alltokens.sources.tar import open_tars, tar_shards
    from alltokens.sources.torchvision_data import PREFIX, open_torchvision

    if data.startswith(PREFIX):
        return open_torchvision(data, split)
    if is_hugging_face(data):
        return open_hugging_face(data, split)
    shards = tar_shards(data)
    if not shards and not os.path.isdir(data):
        raise UserError(
            f"there is no '{data}'; give a folder of images, a .tar file, a pattern such as 'shards/*.tar', "
            f"a Hugging Face data set on disk, or {PREFIX}NAME:FOLDER"
        )
    if split is not None:
        raise UserError(f"'{data}' has no splits; give the path of the split's folder or file instead of '{split}'")
    return open_tars(data, shards) if shards else open_folder(data)
