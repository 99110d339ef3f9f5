"""The averaged model, against timm's and a loop in float64."""

import pytest
import torch
from timm.utils import ModelEmaV3
from torch import nn

from alltokens.errors import UserError
from alltokens.train.average import Average, AverageConfig, decay_of_step


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2))


def move(model: nn.Module) -> None:
    """Other weights and other statistics."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))
        model(torch.randn(3, 3, 4, 4))


@pytest.mark.parametrize("warmup", [True, False])
def test_parameters_and_buffers_are_averaged_as_timm_does(warmup):
    model, config = network(), AverageConfig(decay=0.9, reference_batch=None, warmup=warmup)
    average, timms = Average(model), ModelEmaV3(model, decay=0.9, use_warmup=warmup)
    for step in range(12):
        move(model)
        average.update(decay_of_step(config, 8, step))
        # timm counts from 1; given a step it copies the model in the first one, warm-up or not.
        timms.update(model, step=step + 1 if warmup else None)
        expected = timms.module.state_dict()
        assert all(torch.equal(value, expected[name]) for name, value in average.module.state_dict().items())


def test_the_average_is_the_definitions():
    model = network()
    average = Average(model)
    wanted = {name: value.double() for name, value in model.state_dict().items()}
    for _ in range(5):
        move(model)
        average.update(0.75)
        for name, value in model.state_dict().items():
            counts = name.endswith("num_batches_tracked")
            wanted[name] = value.double() if counts else 0.75 * wanted[name] + 0.25 * value.double()
    found = average.module.state_dict()
    assert found["1.num_batches_tracked"] == 5
    for name, value in wanted.items():
        torch.testing.assert_close(found[name].double(), value, rtol=0, atol=1e-6)


def test_the_average_is_a_copy_in_evaluation_without_gradients():
    model = network()
    average = Average(model)
    assert not average.module.training
    assert model.training
    assert not any(parameter.requires_grad for parameter in average.module.parameters())
    assert all(parameter.requires_grad for parameter in model.parameters())
    average.update(0.5)
    assert all(map(torch.equal, average.module.parameters(), model.parameters()))


def test_a_batch_keeps_as_much_as_its_images_would_one_batch_after_another():
    config = AverageConfig()
    assert decay_of_step(config, 1024, 0) == 0.99992
    assert decay_of_step(config, 256, 0) ** 4 == pytest.approx(0.99992, rel=1e-12)
    assert decay_of_step(config, 2048, 0) == pytest.approx(0.99992**2, rel=1e-12)
    assert decay_of_step(AverageConfig(reference_batch=None), 2048, 0) == 0.99992


def test_a_warm_up_ends_at_the_decay():
    config = AverageConfig(decay=0.9, reference_batch=None, warmup=True)
    found = [decay_of_step(config, 1, step) for step in range(100)]
    assert found[0] == 0
    assert found == sorted(found)
    assert found[-1] == 0.9


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"decay": 1.0}, "decay must be between 0 and 1; got decay=1.0"),
        ({"decay": 0.0}, "decay must be between 0 and 1; got decay=0.0"),
        ({"reference_batch": 0}, "reference_batch must be at least 1, or none; got reference_batch=0"),
    ],
)
def test_an_average_that_cannot_be_is_refused(fields, sentence):
    with pytest.raises(UserError) as raised:
        AverageConfig(**fields)
    assert str(raised.value) == sentence
