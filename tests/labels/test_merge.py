"""Values of equal ids added up, against a loop, and the Triton kernel run by Triton's interpreter."""

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from alltokens.labels.merge import MOST, is_fused, kernel_merge, merge

from ..kernels import run_with_kernels


def drawn(length: int, ids: int) -> tuple[Tensor, Tensor]:
    """Three images of two tokens, with ids that repeat."""
    generator = torch.Generator().manual_seed(length)
    numbers = torch.randint(ids, (3, 2, length), generator=generator, dtype=torch.int32)
    return numbers, torch.randn(3, 2, length, generator=generator)


def by_hand(ids: Tensor, values: Tensor) -> Tensor:
    """Row by row in float64."""
    out = torch.zeros(values.shape, dtype=torch.float64)
    for row, numbers, amounts in zip(out.flatten(0, 1), ids.flatten(0, 1), values.double().flatten(0, 1), strict=True):
        place: dict[int, int] = {}
        for here, (number, amount) in enumerate(zip(numbers.tolist(), amounts.tolist(), strict=True)):
            row[place.setdefault(number, here)] += amount
    return out


@pytest.mark.parametrize(("length", "ids"), [(1, 3), (5, 1), (80, 7), (80, 1000), (300, 40)])
def test_the_values_of_an_id_are_added_up_at_its_first_place(length: int, ids: int) -> None:
    numbers, values = drawn(length, ids)
    torch.testing.assert_close(merge(numbers, values).double(), by_hand(numbers, values), rtol=0, atol=1e-5)
    torch.testing.assert_close(merge(numbers, values.double()), by_hand(numbers, values), rtol=0, atol=1e-12)


def test_torch_accepts_the_operation() -> None:
    numbers, values = drawn(6, 3)
    torch.library.opcheck(merge, (numbers, values))
    torch.library.opcheck(merge, (numbers.mT.contiguous().mT, values.mT.contiguous().mT))


def test_a_gpu_runs_the_kernel_for_what_fits_into_it() -> None:
    with FakeTensorMode():
        for length, dtype, fused in [
            (80, torch.float32, True),
            (80, torch.float64, False),
            (257, torch.float32, False),
        ]:
            ids, values = (torch.empty(2, 3, length, device="cuda", dtype=kind) for kind in (torch.int32, dtype))
            assert is_fused(ids, values) == fused
    assert not is_fused(*drawn(80, 3))


@pytest.mark.slow
def test_the_triton_kernel_adds_up_the_same() -> None:
    run_with_kernels("tests.labels.test_merge")


def check_kernel() -> None:
    """Rows of all lengths that are not padded, that are, and the longest."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for length, ids in ((1, 3), (5, 2), (16, 4), (80, 7), (80, 1000), (MOST, 40)):
        numbers, values = drawn(length, ids)
        out = kernel_merge(numbers.to(device), values.to(device)).cpu()
        torch.testing.assert_close(out.double(), by_hand(numbers, values), rtol=0, atol=1e-5)


if __name__ == "__main__":
    check_kernel()
