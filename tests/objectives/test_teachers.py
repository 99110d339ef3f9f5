"""Teachers and online annotators: opened by name or from files, frozen, and what is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from PIL import Image
from torchvision.transforms.functional import pil_to_tensor

from alltokens.annotate.write import annotate, score
from alltokens.errors import UserError
from alltokens.labels.align import token_targets
from alltokens.labels.store import LabelStore
from alltokens.models.timm_model import TimmClassifier, TimmConfig
from alltokens.models.usage import Usage
from alltokens.models.weights import save_model
from alltokens.objectives.teachers import classes_of_teacher, maps_of_views, open_online_annotator, open_teacher
from alltokens.objectives.token_label import TokenLabelConfig, TokenLabeling

from ..annotate.toys import CPU, photo, toy_annotator, toy_job
from ..kinds import KINDS, lively
from .batches import RECTANGLE, a_batch, a_model


def timm_file(folder: Path, name: str = "test_vit", classes: int = 5) -> str:
    torch.manual_seed(0)
    path = folder / f"{name}.pth"
    torch.save(timm.create_model(name, num_classes=classes).state_dict(), path)
    return str(path)


def test_timms_teacher_answers_as_timm_does_on_images_as_timm_normalises_them(tmp_path: Path) -> None:
    teacher = open_teacher("timm/test_resnet", timm_file(tmp_path, "test_resnet"), (64, 96))
    torch.manual_seed(0)
    model = timm.create_model("test_resnet", num_classes=5).eval()
    images = torch.randn(2, 3, 64, 96)
    torch.testing.assert_close(teacher.answer(images), model(images))
    assert (teacher.mean, teacher.std) == (model.pretrained_cfg["mean"], model.pretrained_cfg["std"])
    assert not teacher.answer(images).requires_grad
    assert not any(parameter.requires_grad for parameter in teacher.model.parameters())
    assert not teacher.model.training


def test_a_teacher_takes_images_of_the_students_size(tmp_path: Path) -> None:
    teacher = open_teacher("timm/test_vit", timm_file(tmp_path), (96, 96))
    assert teacher.answer(torch.randn(2, 3, 96, 96)).shape == (2, 5)


def test_a_file_of_ours_is_a_teacher_and_answers_with_all_its_heads(tmp_path: Path) -> None:
    model = lively(KINDS["lvvit"])
    save_model(model, tmp_path / "model.safetensors")
    teacher = open_teacher(str(tmp_path / "model.safetensors"), None, (32, 48))
    images = torch.randn(2, 3, 32, 48)
    torch.testing.assert_close(teacher.answer(images), model.eval()(images).scores(0.5))


def trained_file(folder: Path, *classes: str) -> str:
    """A weight file that says how its model is used."""
    usage = Usage(mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6), crop=0.9, interpolation="bicubic", classes=classes)
    config = TimmConfig(name="test_vit", classes=len(classes), image_size=(64, 64), token_head=False)
    save_model(TimmClassifier(config), folder / "trained.safetensors", usage)
    return str(folder / "trained.safetensors")


def test_a_teachers_images_are_normalised_as_its_file_says(tmp_path: Path) -> None:
    path = trained_file(tmp_path, "cat", "dog")
    for name, weights in ((path, None), ("timm/test_vit", path)):
        teacher = open_teacher(name, weights, (64, 64))
        assert (teacher.mean, teacher.std) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
        annotator = open_online_annotator(name, weights, (64, 64))
        assert (annotator.mean, annotator.std) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))


def sentence(action: Any) -> str:
    with pytest.raises(UserError) as error:
        action()
    return str(error.value)


def test_a_teacher_without_weights_is_refused(tmp_path: Path) -> None:
    assert sentence(lambda: open_teacher("lvvit_t", None, (224, 224))) == (
        "no weights come with 'lvvit_t'; give a weight file of it with teacher_weights"
    )
    assert sentence(lambda: open_teacher("timm/vit_base_patch16_18x2_224", None, (224, 224))) == (
        "timm publishes no weights of 'vit_base_patch16_18x2_224'; give a weight file with teacher_weights"
    )
    assert sentence(lambda: open_online_annotator("lvvit_t", None, (224, 224))) == (
        "no weights come with 'lvvit_t'; give a weight file of it with teacher_weights"
    )


def test_a_file_that_cannot_teach_is_refused(tmp_path: Path) -> None:
    path = timm_file(tmp_path)
    assert sentence(lambda: open_teacher(path, None, (160, 160))) == (
        f"'{path}' does not say which model it is; name the model as the teacher, such as timm/resnet50, and give "
        "the file with teacher_weights"
    )
    assert sentence(lambda: open_teacher("pip/efficientnet_lite0", path, (160, 160))) == (
        f"'pip/efficientnet_lite0' has weights itself; leave out teacher_weights, got '{path}'"
    )
    state = torch.load(path)
    del state["head.weight"], state["head.bias"]
    torch.save(state, path)
    assert sentence(lambda: open_teacher("timm/test_vit", path, (160, 160))) == (
        f"'{path}' has no head.weight, without which it answers at random"
    )


def test_an_online_annotator_of_squares_refuses_rectangles(tmp_path: Path) -> None:
    path = timm_file(tmp_path)
    assert open_online_annotator("timm/test_vit", path, (96, 96)).image_size == (96, 96)
    assert sentence(lambda: open_online_annotator("timm/test_vit", path, (96, 64))) == (
        "'timm/test_vit' sees squares alone; got images of 96 x 64, train on squares or with another teacher"
    )


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """As large as the annotator's canvas, so that it is shown the same pixels in a folder and in a batch."""
    for number in range(8):
        path = tmp_path / "photos" / ("cat", "dog")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        photo(number, 32, 32).save(path)
    return tmp_path / "photos"


def pixels_of(folder: Path) -> torch.Tensor:
    return torch.stack([pil_to_tensor(Image.open(path)) for path in sorted(folder.rglob("*.png"))])


def test_online_maps_are_those_of_the_store_for_the_whole_image(photos: Path, tmp_path: Path) -> None:
    annotate(toy_job(photos, top_k=5), tmp_path / "labels", CPU, lambda done, total: None)
    store = LabelStore(tmp_path / "labels")
    keys = [str(path.relative_to(photos)) for path in sorted(photos.rglob("*.png"))]
    images = pixels_of(photos)
    whole = torch.eye(2, 3).repeat(8, 1, 1)
    online = maps_of_views(toy_annotator(), images)
    found, expected = (token_targets(maps, whole, (2, 4), 7).dense() for maps in (online, store.read(keys)))
    # A store rounds logits to 8 bits.
    torch.testing.assert_close(found, expected, rtol=0, atol=0.01)
    assert found.std() > 0.05


def test_online_labels_are_the_annotators_own_before_a_store_rounds_them(photos: Path) -> None:
    images = pixels_of(photos)
    offline = score(toy_job(photos, top_k=5), toy_annotator().module, images, torch.device("cpu"))
    online = maps_of_views(toy_annotator(), images)
    for name in ("classes", "logits", "normalizer", "views", "grids"):
        torch.testing.assert_close(getattr(online, name), getattr(offline, name))


def test_online_token_labeling_trains_as_with_offline_labels_of_the_view(photos: Path) -> None:
    model = lively(replace(RECTANGLE, classes=7)).double().eval()
    batch = a_batch(model)
    annotator = toy_annotator()
    offline = score(toy_job(photos, annotator, top_k=5), annotator.module, batch.images, torch.device("cpu"))
    known = replace(batch, score_maps=clone(offline), views=torch.eye(2, 3).repeat(8, 1, 1))
    objective = TokenLabeling(model, TokenLabelConfig(teacher="toy"), annotator)
    losses = [objective(replace(batch, score_maps=None)), TokenLabeling(model)(known)]
    torch.testing.assert_close(losses[0].parts, losses[1].parts)
    gradients = [torch.autograd.grad(each.total, list(model.parameters())) for each in losses]
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-6)
    assert set(objective.state_dict()) == {f"model.{name}" for name in model.state_dict()}


def clone(maps: Any) -> Any:
    """Tensors that autograd may keep."""
    return type(maps)(*(getattr(maps, name).clone() for name in ("classes", "logits", "normalizer", "views", "grids")))


def test_a_teacher_other_than_the_configs_is_refused() -> None:
    model = a_model("rectangle")
    expected = "a teacher that the config names is handed over opened, and no other; got teacher="
    assert sentence(lambda: TokenLabeling(model, TokenLabelConfig(teacher="toy"))) == f"{expected}toy and none"
    assert sentence(lambda: TokenLabeling(model, teacher=toy_annotator(5))) == f"{expected}None and toy"
    assert sentence(lambda: TokenLabeling(model, TokenLabelConfig(teacher="toy"), toy_annotator(7))) == (
        "the teacher must have the model's 5 classes; 'toy' has 7"
    )
    assert sentence(lambda: TokenLabelConfig(teacher_weights="w.pth")) == (
        "teacher_weights are a teacher's; got teacher_weights=w.pth without a teacher"
    )


def test_timms_own_annotator_answers_for_cells_of_the_students_images(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = TimmConfig(name="test_resnet", classes=5, image_size=(64, 64), token_head=False)
    save_model(TimmClassifier(config), tmp_path / "model.safetensors")
    annotator = open_online_annotator(str(tmp_path / "model.safetensors"), None, (64, 96))
    maps = maps_of_views(annotator, torch.randint(256, (2, 3, 64, 96), dtype=torch.uint8))
    assert maps.grids.tolist() == [[2, 3], [2, 3]]


def test_a_teachers_classes_are_the_datas_or_imagenets(tmp_path: Path) -> None:
    few, imagenet = timm_file(tmp_path, classes=3), timm_file(tmp_path, "test_resnet", classes=1000)
    assert classes_of_teacher("timm/test_vit", few, ["cat", "dog", "owl"]) == ("cat", "dog", "owl")
    assert classes_of_teacher("timm/test_vit", few, ["cat", "dog"]) == ("0", "1", "2")
    names = classes_of_teacher("timm/test_resnet", imagenet, ["n01440764", "n02102040"])
    assert (len(names), names[0], names[217]) == (1000, "n01440764", "n02102040")


def test_the_papers_annotators_teach_by_their_short_names_too(tmp_path: Path) -> None:
    weights = timm_file(tmp_path, "tf_efficientnet_b3.aa_in1k", 1000)
    assert classes_of_teacher("efficientnet_b3", weights, ["n01440764", "n02102040"])[0] == "n01440764"


def test_a_teachers_classes_are_those_that_its_file_names_in_its_order(tmp_path: Path) -> None:
    path = trained_file(tmp_path, "owl", "dog", "cat")
    assert classes_of_teacher(path, None, ["cat", "dog", "owl"]) == ("owl", "dog", "cat")
    assert classes_of_teacher("timm/test_vit", path, ["cat", "dog"]) == ("owl", "dog", "cat")


def test_a_teacher_of_as_many_other_classes_is_refused(tmp_path: Path) -> None:
    path = trained_file(tmp_path, "cat", "dog")
    assert sentence(lambda: classes_of_teacher(path, None, ["ape", "zebra"])) == (
        f"the teacher '{path}' does not know the data's class 'ape' by its name; it has 2 classes, such as 'cat', 'dog'"
    )
