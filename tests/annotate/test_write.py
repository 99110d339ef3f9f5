"""Annotation from images to a store: what is in it, going on after a stop, and what is refused."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from alltokens.annotate.annotator import Annotator
from alltokens.annotate.canvas import Canvas
from alltokens.annotate.class_map import ClassMap
from alltokens.annotate.write import Job, annotate, batches_of, usual_records_per_shard
from alltokens.data.split import hold_out
from alltokens.errors import UserError
from alltokens.labels.store import LabelStore, verify

from .toys import CPU, files_of, photo, photo_folder, toy_annotator, toy_job


def run(job: Job, store: Path, machine=CPU) -> LabelStore:
    annotate(job, store, machine, lambda done, total: None)
    assert verify(store) == []
    return LabelStore(store)


def dense_answer(annotator: Annotator, image: Image.Image, size: tuple[int, int]) -> Tensor:
    """The annotator's logits of one image, made without any of the code that annotates; [classes, h, w]."""
    pixels = np.asarray(image.resize((size[1], size[0]), Image.Resampling.BILINEAR), dtype=np.float32) / 255
    normal = (pixels - np.array(annotator.mean, np.float32)) / np.array(annotator.std, np.float32)
    return annotator.module(torch.from_numpy(normal).permute(2, 0, 1)[None])[0]


def assert_holds(store: LabelStore, key: str, logits: Tensor, top_k: int) -> None:
    """The store's map of an image has the top classes of these logits, to its own rounding."""
    found = store[key]
    classes = logits.topk(top_k, 0).indices
    assert found.classes.shape == classes.shape
    probabilities = logits.softmax(0)
    for place in np.ndindex(*found.classes.shape):
        own = int(found.classes[place])
        # Two classes nearer to each other than rounding, that of resized pixels included, may change places.
        assert (
            abs(float(probabilities[own, place[1], place[2]] - probabilities[int(classes[place]), place[1], place[2]]))
            < 5e-3
        )
        stored = float((found.logits[place] - found.normalizer[place[1:]]).exp())
        assert stored == pytest.approx(float(probabilities[own, place[1], place[2]]), abs=0.01)


def test_a_store_holds_the_annotators_answer_for_each_image(tmp_path: Path):
    data = photo_folder(tmp_path / "data", 10)
    job = toy_job(data)
    store = run(job, tmp_path / "store")
    assert len(store) == 10
    assert store.keys() == list(job.source.keys)
    assert store.classes == job.annotator.classes
    for row, key in enumerate(job.source.keys):
        assert_holds(store, key, dense_answer(job.annotator, job.source.image(row), (32, 32)), 3)


def test_a_store_says_which_rows_its_numbers_count(tmp_path: Path):
    job = toy_job(photo_folder(tmp_path / "data", 6))
    assert (job.plan.split, job.plan.labels_sha256) == ("", "")
    part, _ = hold_out(replace(job.source, split="train", labels_sha256="1" * 64), 0.5)
    plan = replace(job, source=part).plan
    assert (plan.images, plan.split, plan.labels_sha256) == (2, "train", "1" * 64)


def test_rectangles_keep_the_shape_of_their_images(tmp_path: Path):
    job = toy_job(photo_folder(tmp_path / "data", 8), fit="rectangle")
    store = run(job, tmp_path / "store")
    grids = {key: tuple(store[key].normalizer.shape) for key in job.source.keys}
    assert grids["cat/000.png"] == (3, 5)
    assert grids["dog/001.png"] == (5, 3)
    assert grids["cat/002.png"] == (4, 4)
    assert grids["dog/003.png"] == (2, 8)
    for row, key in enumerate(job.source.keys):
        size = grids[key][0] * 8, grids[key][1] * 8
        assert_holds(store, key, dense_answer(job.annotator, job.source.image(row), size), 3)


def test_no_rectangle_has_more_cells_than_the_square():
    canvas = Canvas("rectangle", (72, 72), 8, "bilinear")
    for height in range(1, 200, 7):
        for width in range(1, 200, 7):
            rows, columns = (side // 8 for side in canvas.size_for(height, width))
            assert 1 <= rows * columns <= 81
    assert canvas.size_for(1, 10_000) == (8, 81 * 8)
    assert canvas.size_for(300, 400) == (64, 80)


def test_mirrored_answers_are_averaged_in_their_place(tmp_path: Path):
    job = toy_job(photo_folder(tmp_path / "data", 2), flip=True)
    store = run(job, tmp_path / "store")
    for row, key in enumerate(job.source.keys):
        image = job.source.image(row)
        mirrored = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        answers = [dense_answer(job.annotator, one, (32, 32)) for one in (image, mirrored)]
        assert_holds(store, key, (answers[0] + answers[1].flip(2)) / 2, 3)


def test_a_class_map_joins_classes_and_what_it_drops_stays_mass_of_no_class(tmp_path: Path):
    class_map = ClassMap(classes=("animal", "thing"), target=(0, 0, 1, -1, 1, -1, 0))
    job = toy_job(photo_folder(tmp_path / "data", 2), class_map=class_map, top_k=2)
    store = run(job, tmp_path / "store")
    assert store.classes == ("animal", "thing")
    probabilities = dense_answer(job.annotator, job.source.image(0), (32, 32)).softmax(0)
    expected = torch.stack((probabilities[[0, 1, 6]].sum(0), probabilities[[2, 4]].sum(0)))
    found = store["cat/000.png"]
    stored = torch.zeros(2, 4, 4).scatter_(0, found.classes.long(), (found.logits - found.normalizer).exp())
    torch.testing.assert_close(stored, expected, atol=0.005, rtol=0)


@pytest.mark.parametrize(("classes", "top_k"), [(2, 1), (2, 2), (5000, 5), (100_000, 1)])
def test_any_number_of_classes_and_any_k(tmp_path: Path, classes: int, top_k: int):
    job = toy_job(photo_folder(tmp_path / "data", 1), toy_annotator(classes, side=16), top_k=top_k)
    store = run(job, tmp_path / "store")
    assert_holds(store, "cat/000.png", dense_answer(job.annotator, job.source.image(0), (16, 16)), top_k)


def test_an_image_of_one_pixel_is_annotated(tmp_path: Path):
    (tmp_path / "data").mkdir()
    photo(0, 1, 1).save(tmp_path / "data" / "dot.png")
    for fit in ("square", "rectangle"):
        assert run(toy_job(tmp_path / "data", fit=fit), tmp_path / fit)["dot.png"].normalizer.shape == (4, 4)


def test_an_unreadable_image_is_listed_and_stops_nothing(tmp_path: Path):
    data = photo_folder(tmp_path / "data", 9)
    (data / "cat" / "002.png").write_bytes((data / "cat" / "002.png").read_bytes()[:60])
    (data / "dog" / "zero.jpg").write_bytes(b"")
    store = run(toy_job(data), tmp_path / "store")
    assert set(store.unreadable) == {"cat/002.png", "dog/zero.jpg"}
    assert store.meta.unreadable == 2
    maps = store.read(["cat/000.png", "cat/002.png"])
    assert maps.grids.tolist() == [[4, 4], [0, 0]]


def test_data_without_any_readable_image_makes_a_store_without_labels(tmp_path: Path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.png").write_bytes(b"no image")
    store = run(toy_job(tmp_path / "data"), tmp_path / "store")
    assert list(store.unreadable) == ["a.png"]


@pytest.mark.parametrize("workers", [1, 2])
def test_worker_processes_change_nothing(tmp_path: Path, workers: int):
    job = toy_job(photo_folder(tmp_path / "data", 11), fit="rectangle")
    run(job, tmp_path / "alone")
    run(job, tmp_path / "helped", replace(CPU, workers=workers))
    assert files_of(tmp_path / "alone") == files_of(tmp_path / "helped")


class Stop(Exception):
    """Ends a run from within."""


def test_an_interrupted_run_goes_on_and_ends_byte_identical(tmp_path: Path):
    job = toy_job(photo_folder(tmp_path / "data", 18))
    run(job, tmp_path / "whole")
    seen = []

    def stop_at(limit: int):
        def report(done: int, total: int) -> None:
            seen.append(total)
            if done >= limit:
                raise Stop

        return report

    for limit in (1, 6, 9):
        with pytest.raises(Stop):
            annotate(job, tmp_path / "store", CPU, stop_at(limit))
        with pytest.raises(UserError) as error:
            LabelStore(tmp_path / "store")
        assert str(error.value).endswith("is unfinished; run the same command again to finish it")
    run(job, tmp_path / "store")
    assert files_of(tmp_path / "store") == files_of(tmp_path / "whole")
    # Each time fewer images were left to do.
    assert seen[-1] < seen[0] == 18


def test_a_finished_store_is_left_as_it_is(tmp_path: Path):
    job = toy_job(photo_folder(tmp_path / "data", 3))
    run(job, tmp_path / "store")
    before = files_of(tmp_path / "store")
    asked = []
    annotate(job, tmp_path / "store", CPU, lambda done, total: asked.append((done, total)))
    assert files_of(tmp_path / "store") == before
    assert asked == [(0, 0)]


def test_another_job_does_not_go_on_with_a_store(tmp_path: Path):
    data = photo_folder(tmp_path / "data", 3)
    run(toy_job(data), tmp_path / "store")
    with pytest.raises(UserError) as error:
        annotate(toy_job(data, top_k=2), tmp_path / "store", CPU, lambda done, total: None)
    assert "top_k is 3 there and 2 now" in str(error.value)
    (data / "cat" / "more.png").write_bytes((data / "cat" / "000.png").read_bytes())
    with pytest.raises(UserError) as error:
        annotate(toy_job(data), tmp_path / "store", CPU, lambda done, total: None)
    assert "images is 3 there and 4 now" in str(error.value)


def test_two_runs_into_one_store_are_refused(tmp_path: Path):
    job, store = toy_job(photo_folder(tmp_path / "data", 3)), tmp_path / "store"
    program = (
        "from pathlib import Path; from alltokens.annotate.write import *\n"
        f"with Processes(0, 1).alone_in(Path({str(store)!r})): print('here', flush=True); input()"
    )
    other = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with other:
        assert other.stdout is not None
        assert other.stdout.readline() == "here\n"
        with pytest.raises(UserError) as error:
            annotate(job, store, CPU, lambda done, total: None)
        other.communicate("\n")
    assert str(error.value) == f"another run is writing to '{store}'; wait for it, or give another folder"
    run(job, store)


def test_a_store_needs_a_folder_to_lie_in(tmp_path: Path):
    job, store = toy_job(photo_folder(tmp_path / "data", 1)), tmp_path / "no" / "store"
    with pytest.raises(UserError) as error:
        annotate(job, store, CPU, lambda done, total: None)
    sentence = f"cannot write to '{store}': No such file or directory; give a folder in an existing one"
    assert str(error.value) == sentence


@pytest.mark.skipif(os.geteuid() != 0 and not os.access("/", os.W_OK), reason="only a superuser writes anywhere")
def test_a_file_is_no_store(tmp_path: Path):
    job, store = toy_job(photo_folder(tmp_path / "data", 1)), tmp_path / "store"
    store.write_text("something else")
    with pytest.raises(UserError) as error:
        annotate(job, store, CPU, lambda done, total: None)
    assert str(error.value) == f"cannot write to '{store}': File exists; give a folder in an existing one"


class Overflowing(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images[:, :, ::8, ::8] / 0.0


def test_an_annotator_that_overflows_is_refused_with_the_image(tmp_path: Path):
    annotator = replace(toy_annotator(3), module=Overflowing())
    job = toy_job(photo_folder(tmp_path / "data", 2), annotator, top_k=1)
    with pytest.raises(UserError) as error:
        annotate(job, tmp_path / "store", CPU, lambda done, total: None)
    assert str(error.value) == "annotator 'toy' gives 'cat/000.png' scores that are not finite numbers"


@pytest.mark.parametrize("top_k", [0, 8])
def test_k_is_no_more_than_the_classes(tmp_path: Path, top_k: int):
    data = photo_folder(tmp_path / "data", 1)
    with pytest.raises(UserError) as error:
        toy_job(data, top_k=top_k)
    assert str(error.value) == f"top_k must be between 1 and the 7 classes; got top_k={top_k}"
    class_map = ClassMap(classes=("animal", "thing"), target=(0, 0, 0, -1, -1, -1, -1))
    with pytest.raises(UserError) as error:
        toy_job(data, top_k=2, class_map=class_map)
    assert str(error.value) == "top_k must be between 1 and the 1 classes; got top_k=2"


def test_batches_never_span_shards():
    assert batches_of(range(4, 9), 3) == [range(4, 7), range(7, 9)]


@pytest.mark.parametrize(("images", "records"), [(1, 256), (20_000, 313), (1_281_167, 8192)])
def test_shards_are_few_and_not_large(images: int, records: int):
    assert usual_records_per_shard(images) == records
