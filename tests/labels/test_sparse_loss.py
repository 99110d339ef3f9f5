"""The sparse cross-entropy against the dense formula, and its Triton kernels run by Triton's interpreter."""

import subprocess
import sys

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from alltokens.errors import UserError
from alltokens.labels.align import SparseTargets, token_targets
from alltokens.labels.sparse_loss import (
    is_fused,
    kernel_backward,
    kernel_losses,
    losses_backward,
    plain_backward,
    plain_losses,
    token_cross_entropy,
    token_losses,
)

from ..kernels import run_with_kernels
from .score_maps import dense_loss, difference, random_maps, turned_views

CLASSES = 40
DTYPES = torch.bfloat16, torch.float16, torch.float32, torch.float64


def targets_of(rule: str, smoothing: float, dtype: torch.dtype) -> SparseTargets:
    """Targets of four images, some tokens without a label."""
    maps = random_maps(4, 5, 6, 9, CLASSES, dtype)
    return token_targets(maps, turned_views(dtype), (5, 4), CLASSES, rule, smoothing)


def random_logits(dtype: torch.dtype) -> Tensor:
    """Logits of as many tokens."""
    return (3 * torch.randn(4, 20, CLASSES, generator=torch.Generator().manual_seed(0), dtype=dtype)).requires_grad_()


@pytest.mark.parametrize("rule", ["zero_fill", "probabilities"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_value_and_gradient_equal_the_dense_formula(
    rule: str, smoothing: float, dtype: torch.dtype, tolerance: float
) -> None:
    targets, logits = targets_of(rule, smoothing, dtype), random_logits(dtype)
    ours, theirs = token_cross_entropy(logits, targets), dense_loss(logits, targets)
    assert difference(ours.detach(), theirs.detach()) < tolerance
    assert difference(*(torch.autograd.grad(loss, logits)[0] for loss in (ours, theirs))) < tolerance


def test_targets_that_do_not_sum_to_one_keep_their_mass() -> None:
    targets, logits = targets_of("zero_fill", 0.0, torch.float64).scaled(0.7, 0.05), random_logits(torch.float64)
    ours, theirs = token_cross_entropy(logits, targets), dense_loss(logits, targets)
    assert difference(ours.detach(), theirs.detach()) < 1e-12
    assert difference(*(torch.autograd.grad(loss, logits)[0] for loss in (ours, theirs))) < 1e-12


def test_unlabelled_tokens_do_not_count() -> None:
    targets, logits = targets_of("zero_fill", 0.1, torch.float32), random_logits(torch.float32)
    loss = token_cross_entropy(logits, targets)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert not gradient[~targets.labelled].any()
    changed = torch.where(targets.labelled[..., None], logits, 100 * logits)
    torch.testing.assert_close(token_cross_entropy(changed, targets), loss)


def test_a_batch_without_labels_costs_nothing() -> None:
    maps, beyond = random_maps(1, 5, 6, 9, CLASSES), torch.tensor([[[1.0, 0, 5], [0, 1, 5]]])
    targets = token_targets(maps, beyond, (2, 2), CLASSES)
    logits = torch.randn(1, 4, CLASSES, requires_grad=True)
    loss = token_cross_entropy(logits, targets)
    loss.backward()
    assert loss == 0
    assert not logits.grad.any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_summed_in_float32(dtype: torch.dtype) -> None:
    targets, logits = targets_of("zero_fill", 0.1, torch.float32), random_logits(torch.float32).detach().to(dtype)
    half, wide = logits.clone().requires_grad_(), logits.float().requires_grad_()
    ours, theirs = token_cross_entropy(half, targets), token_cross_entropy(wide, targets)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, theirs)
    gradients = [torch.autograd.grad(loss, x)[0] for loss, x in ((ours, half), (theirs, wide))]
    assert gradients[0].dtype == dtype
    assert difference(*gradients) < 0.01


def test_targets_have_no_gradient() -> None:
    targets, logits = targets_of("zero_fill", 0.0, torch.float32), random_logits(torch.float32)
    targets.values.requires_grad_()
    token_cross_entropy(logits, targets).backward()
    assert targets.values.grad is None


def test_its_derivative_passes_gradcheck() -> None:
    targets = token_targets(random_maps(1, 2, 3, 3, 5, torch.float64), turned_views(torch.float64)[:1], (2, 2), 5)
    logits = torch.randn(1, 4, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: token_cross_entropy(x, targets), logits)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's check reads it
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "sliced"])
def test_torch_accepts_the_operation_for_autograd_and_compilation(layout: str) -> None:
    check_operation(layout, "cpu")


def check_operation(layout: str, device: str) -> None:
    """torch's own checks of a custom operation."""
    logits = {
        "contiguous": torch.randn(2, 3, 7),
        "transposed": torch.randn(7, 2, 3).permute(1, 2, 0),
        "sliced": torch.randn(2, 4, 7)[:, 1:],
    }[layout]
    ids, values, floor = torch.arange(4).expand(2, 3, 4).int(), torch.rand(2, 3, 4), torch.rand(2, 3)
    arguments = logits.to(device).requires_grad_(), ids.to(device), values.to(device), floor.to(device)
    torch.library.opcheck(token_losses, arguments)


def test_logits_must_fit_the_targets() -> None:
    with pytest.raises(UserError) as error:
        token_cross_entropy(torch.zeros(4, 21, CLASSES), targets_of("zero_fill", 0.0, torch.float32))
    sentence = "token logits must have the images, tokens and classes of the targets, (4, 20, 40); got (4, 21, 40)"
    assert str(error.value) == sentence


def test_a_gpu_runs_the_kernels_for_the_dtypes_of_training() -> None:
    with FakeTensorMode():
        fused = {dtype: is_fused(torch.empty(2, 3, 4, device="cuda", dtype=dtype)) for dtype in DTYPES}
    assert fused == dict.fromkeys(DTYPES, True) | {torch.float64: False}
    assert not is_fused(torch.empty(2, 3, 4))


@pytest.mark.parametrize("dtype", DTYPES)
def test_shapes_and_dtypes_are_known_without_computing(dtype: torch.dtype) -> None:
    targets, logits = targets_of("zero_fill", 0.0, torch.float32), random_logits(torch.float32).detach().to(dtype)
    target = targets.ids, targets.values, targets.floor
    losses, normalizer = token_losses(logits, *target)
    gradient = losses_backward(losses, logits, normalizer, *target)
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(x) for x in (logits, *target)]
        fake_losses, fake_normalizer = token_losses(*fakes)
        fake_gradient = losses_backward(fake_losses, fakes[0], fake_normalizer, *fakes[1:])
    for real, fake in ((losses, fake_losses), (normalizer, fake_normalizer), (gradient, fake_gradient)):
        assert (real.dtype, real.shape, real.stride()) == (fake.dtype, fake.shape, fake.stride())


@pytest.mark.slow
def test_it_works_without_triton() -> None:
    source = "import sys; sys.modules['triton'] = None; import alltokens.labels.sparse_loss as s; print(s.HAS_TRITON)"
    answer = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert answer.stdout == "False\n"


@pytest.mark.slow
def test_the_triton_kernels_equal_the_plain_operations() -> None:
    run_with_kernels("tests.labels.test_sparse_loss")


def compare_kernels(b: int, n: int, classes: int, dtype: torch.dtype, tolerance: float) -> None:
    """Losses and gradients of the kernels on logits with gaps between images, against float64."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    maps, views = random_maps(b, min(5, classes), 6, 9, classes), turned_views(torch.float32)[:b]
    targets = token_targets(maps, views, (n, 2), classes, smoothing=0.1).to(device)
    logits = (3 * torch.randn(b, 2 * n + 1, classes)).to(device, dtype)[:, 1:]
    gradient, target = torch.randn(b, 2 * n, device=device), (targets.ids, targets.values, targets.floor)
    losses, normalizer = kernel_losses(logits, *target)
    exact = logits.double()
    answers = {
        "loss": (losses, plain_losses(exact, *target)[0]),
        "gradient": (
            kernel_backward(gradient, logits, normalizer, *target),
            plain_backward(gradient.double(), exact, *target),
        ),
    }
    assert answers["gradient"][0].dtype == dtype
    for name, pair in answers.items():
        error, allowed = difference(*pair), 1e-5 if name == "loss" else tolerance
        assert error < allowed, f"the {name} is off by {error:.1e} at b={b}, n={n}, classes={classes}, {dtype}"


def check_kernels() -> None:
    """Rows of one block and of several, full and ragged, down to two classes."""
    torch.manual_seed(0)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float16, 1e-3), (torch.bfloat16, 1e-2)):
        for sizes in ((2, 3, 40), (1, 2, 1000), (1, 1, 4096), (1, 1, 9001), (1, 2, 2)):
            compare_kernels(*sizes, dtype, tolerance)
    if torch.cuda.is_available():
        for layout in ("contiguous", "transposed", "sliced"):
            check_operation(layout, "cuda")


if __name__ == "__main__":
    check_kernels()
