"""How well a store's labels agree with the classes of the data set itself."""

import torch

from alltokens.labels.align import view_targets
from alltokens.labels.score_map import whole_image
from alltokens.labels.store import LabelStore
from alltokens.sources.source import Source

TOGETHER = 256
"""Maps averaged at once."""


def named_right(store: LabelStore, source: Source) -> float:
    """Share of the labelled images whose map, averaged over the whole image, puts their own class first.

    The data set's classes are among the store's.
    """
    place = {name: number for number, name in enumerate(store.classes)}
    own = torch.tensor([-1 if label < 0 else place[source.classes[label]] for label in source.labels])
    right = counted = 0
    for start in range(0, len(source), TOGETHER):
        maps = store.read(source.keys[start : start + TOGETHER])
        whole = whole_image().repeat(len(maps.logits), 1, 1)
        named = view_targets(maps, whole, len(store.classes))
        first = named.ids[:, 0].gather(1, named.values[:, 0].argmax(1, keepdim=True))[:, 0]
        wanted = own[start : start + TOGETHER]
        known = named.labelled[:, 0] & (wanted >= 0)
        right, counted = right + int((first == wanted)[known].sum()), counted + int(known.sum())
    return right / max(counted, 1)
