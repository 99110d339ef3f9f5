"""Batches of random pixels and labels, tiny models, and the objectives' losses one image, token and class at a time."""

from dataclasses import replace

import torch
from torch import Tensor, nn

import alltokens
from alltokens.data.batch import Batch
from alltokens.models.config import LinearStem, ViTConfig
from alltokens.models.prediction import Prediction
from alltokens.models.timm_model import TimmClassifier, TimmConfig
from alltokens.objectives.classify import ClassifyConfig
from alltokens.objectives.finishing import finish_by_seeds
from alltokens.objectives.mixing import BatchMix, Model, draw_mix, grid_of
from alltokens.objectives.token_label import TokenLabelConfig, participants

from ..kinds import lively
from ..labels.score_maps import cell_average, dense_logits, dense_probabilities, random_maps, turned_views

CLASSES = 5
RECTANGLE = ViTConfig(
    width=24, depth=2, heads=2, stem=LinearStem(patch=8), image_size=(32, 48), classes=CLASSES, token_head=True
)
SQUARE = replace(RECTANGLE, image_size=(32, 32))


def a_model(kind: str, token_head: bool = True) -> Model:
    """A double-precision model whose answers do not depend on the batch."""
    if kind.startswith("timm/"):
        torch.manual_seed(0)
        name = kind.removeprefix("timm/")
        config = TimmConfig(name=name, classes=CLASSES, image_size=(64, 96), token_head=token_head)
        model: Model = TimmClassifier(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))  # some of timm's gains start at 0
    else:
        model = lively(replace({"square": SQUARE, "rectangle": RECTANGLE}[kind], token_head=token_head))
    return model.double().eval()


def a_batch(model: Model, batch: int = 8, whole_views: bool = False, dtype: torch.dtype = torch.float64) -> Batch:
    """Random images, classes and score maps; some tokens have no label unless the views are whole."""
    generator = torch.Generator().manual_seed(7)
    views = turned_views(dtype).repeat(-(-batch // 4), 1, 1)[:batch]
    return Batch(
        images=torch.randint(256, (batch, 3, *model.config.image_size), dtype=torch.uint8, generator=generator),
        classes=torch.randint(CLASSES, (batch,), generator=generator),
        score_maps=random_maps(batch, 3, 4, 6, CLASSES, dtype),
        views=torch.eye(2, 3, dtype=dtype).repeat(batch, 1, 1) if whole_views else views,
        keys=tuple(f"{image}.jpg" for image in range(batch)),
        seeds=torch.randint(2**63 - 1, (batch,), generator=generator),
    )


def rows(batch: Batch, part: slice) -> Batch:
    """Some of the images of a batch."""
    maps = batch.score_maps
    if maps is not None:
        tensors = (maps.classes, maps.logits, maps.normalizer, maps.views, maps.grids)
        maps = type(maps)(*(tensor[part] for tensor in tensors))
    return Batch(batch.images[part], batch.classes[part], maps, batch.views[part], batch.keys[part], batch.seeds[part])


def box_of(mix: BatchMix, image: int) -> Tensor:
    """Cells that come from the partner."""
    return torch.zeros(1, 1, dtype=torch.bool) if mix.boxes is None else mix.boxes.swapped[image]


def kept_of(mix: BatchMix, image: int) -> float:
    """The share of every pixel that stays."""
    return 1.0 if mix.blend is None else mix.blend.weight[image].item()


def other(image: int) -> int:
    return image + 1 if image % 2 == 0 else image - 1


def mixed_prediction(model: Model, images: Tensor, mix: BatchMix) -> Prediction:
    """Tokens or pixels taken from the partner cell by cell, or blended image by image."""
    if not isinstance(mix.boxes, alltokens.TokenMix):
        return model(mixed_pixels(images, mix))
    grid = model.embed(mixed_pixels(images, BatchMix(blend=mix.blend)))
    mixed = grid.clone()
    for image, row, column in torch.cartesian_prod(*map(torch.arange, grid.shape[:3])).tolist():
        if box_of(mix, image)[row, column]:
            mixed[image, row, column] = grid[other(image), row, column]
    return model.classify(model.encode(mixed))


def mixed_pixels(images: Tensor, mix: BatchMix) -> Tensor:
    """Pixels under the cells of a box taken from the partner, or blended image by image."""
    mixed = images.clone()
    for image in range(len(images)):
        box = box_of(mix, image)
        down, across = images.shape[2] // box.shape[0], images.shape[3] // box.shape[1]
        for row, column in box.nonzero().tolist():
            place = slice(row * down, (row + 1) * down), slice(column * across, (column + 1) * across)
            mixed[(image, slice(None), *place)] = images[(other(image), slice(None), *place)]
    cut = mixed.clone()
    for image in range(len(images)):
        mixed[image] = kept_of(mix, image) * cut[image] + (1 - kept_of(mix, image)) * cut[other(image)]
    return mixed


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """-sum of target * log softmax, class by class."""
    total = logits.exp().sum().log()
    return sum((-target[k] * (logits[k] - total) for k in range(len(logits))), torch.zeros(()).double())


def binary_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Mean over classes of what each says of itself by its sigmoid."""
    losses = [
        -target[k] * (1 / (1 + (-logits[k]).exp())).log() - (1 - target[k]) * (1 / (1 + logits[k].exp())).log()
        for k in range(len(logits))
    ]
    return sum(losses) / len(losses)


def image_target(config: TokenLabelConfig | ClassifyConfig, batch: Batch, image: int) -> Tensor:
    """Without smoothing; the view is the whole image where the score map counts."""
    label = nn.functional.one_hot(batch.classes[image], CLASSES).double()
    if config.image_target == "class_label":
        return label
    if config.rule == "probabilities":
        mapped = dense_probabilities(batch.score_maps, CLASSES)[image].mean((1, 2))
    else:
        mapped = dense_logits(batch.score_maps, CLASSES)[image].mean((1, 2)).softmax(0)
    share = 1.0 if config.image_target == "score_map" else mapped[batch.classes[image]]
    return share * mapped + (1 - share) * label


def smoothed(config: TokenLabelConfig | ClassifyConfig, target: Tensor) -> Tensor:
    return (1 - config.smoothing) * target + config.smoothing / CLASSES


def image_loss_by_hand(
    config: TokenLabelConfig | ClassifyConfig, batch: Batch, mix: BatchMix, logits: Tensor
) -> Tensor:
    """TL eq. 1 and 7."""
    compare = binary_cross_entropy if getattr(config, "loss", None) == "binary" else cross_entropy
    losses = []
    for image in range(len(batch)):
        box, blend = box_of(mix, image), kept_of(mix, image)
        outside = 1 - int(box.sum()) / box.numel()
        # The box comes from the partner, which is blended with this image as well.
        kept = outside * blend + (1 - outside) * (1 - blend)
        own, partners = (smoothed(config, image_target(config, batch, which)) for which in (image, other(image)))
        losses.append(compare(logits[image], kept * own + (1 - kept) * partners))
    return sum(losses) / len(losses)


def token_loss_by_hand(config: TokenLabelConfig, batch: Batch, mix: BatchMix, model: Model, logits: Tensor) -> Tensor:
    """TL eq. 2 and 6, of the tokens that have a label and participate."""
    grid = grid_of(model)
    tokens = grid[0] * grid[1]
    if config.rule == "zero_fill":
        mean, labelled = cell_average(dense_logits(batch.score_maps, CLASSES), batch.views, grid)
        targets = mean.softmax(-1)
    else:
        targets, labelled = cell_average(dense_probabilities(batch.score_maps, CLASSES), batch.views, grid)
    counted = participants(batch.seeds, tokens, config.participation)

    def mean_loss(image: int, of: int) -> Tensor:
        """The logits of an image beside the targets of what another shows."""
        losses = []
        for token in range(tokens):
            swapped = mix.boxes is not None and bool(box_of(mix, of).flatten()[token])
            source = other(of) if swapped else of
            if labelled[source, token] and (counted is None or counted[image, token]):
                losses.append(cross_entropy(logits[image, token], smoothed(config, targets[source, token])))
        return sum(losses, torch.zeros(()).double()) / max(1, len(losses))

    losses = []
    for image in range(len(batch)):
        kept = kept_of(mix, image)
        losses.append(kept * mean_loss(image, image) + (1 - kept) * mean_loss(image, other(image)))
    return sum(losses) / len(losses)


def losses_by_hand(model: Model, config: TokenLabelConfig | ClassifyConfig, batch: Batch) -> dict[str, Tensor]:
    """Total, image and, for token labels, token loss."""
    labels = isinstance(config, TokenLabelConfig)
    mix = draw_mix(config.mix, batch.seeds, model, token_targets=labels)
    assert all(((part.weight > 0) & (part.weight < 1)).any() for part in (mix.boxes, mix.blend) if part is not None)
    images = finish_by_seeds(batch.images, config.finish, batch.seeds).double()
    image_logits, token_logits, _ = mixed_prediction(model, images, mix)
    image = image_loss_by_hand(config, batch, mix, image_logits)
    if not labels:
        return {"total": image, "image": image}
    token = token_loss_by_hand(config, batch, mix, model, token_logits)
    return {"total": image + config.beta * token, "image": image, "token": token}


def check_by_hand(objective: nn.Module, batch: Batch) -> None:
    """Losses and gradients are those of the loops."""
    losses, by_hand = objective(batch), losses_by_hand(objective.model, objective.config, batch)
    # The labels' one-hot targets and the weights of a mix are float32.
    torch.testing.assert_close({"total": losses.total.detach()} | losses.parts, detached(by_hand), rtol=1e-6, atol=1e-6)
    parameters = list(objective.parameters())
    gradients = [torch.autograd.grad(total, parameters) for total in (losses.total, by_hand["total"])]
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-6)
    assert all(gradient.any() for gradient in gradients[0])


def detached(losses: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: loss.detach() for name, loss in losses.items()}


def check_split(objective: nn.Module, batch: Batch) -> None:
    """The losses and gradients of a batch are the means of those of its halves."""
    half = len(batch) // 2
    whole, *halves = (objective(part) for part in (batch, rows(batch, slice(half)), rows(batch, slice(half, None))))
    parameters = list(objective.parameters())
    answers = []
    for losses in (whole, *halves):
        gradients = torch.autograd.grad(losses.total, parameters, retain_graph=True)
        answers.append([losses.total.detach(), *losses.parts.values(), *gradients])
    for together, first, second in zip(*answers, strict=True):
        torch.testing.assert_close(together, (first + second) / 2, rtol=1e-12, atol=1e-12)
