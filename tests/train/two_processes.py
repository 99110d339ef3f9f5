"""One step of a network with synchronised norms in two processes, each with its part of the batch.

    python -m tests.train.two_processes FOLDER FIRST

FIRST images are the first process's. A process of its own, because it forks: none of torch's threads may run by then.
"""

import os
import sys
from pathlib import Path

import torch
from timm.layers import BatchNormAct2d
from torch import Tensor, distributed, nn

from alltokens.train.sync_norm import synchronize_norms

IMAGES = 8


def network() -> nn.Module:
    """Every kind of norm, with values of its own, in float64."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.GELU(),
        nn.Conv2d(4, 5, 3),
        nn.BatchNorm2d(5, affine=False, momentum=None, eps=1e-3),
        BatchNormAct2d(5),
        nn.Flatten(),
        nn.Linear(20, 6),
        nn.BatchNorm1d(6, track_running_stats=False),
    )
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    return model.double()


def batch() -> tuple[Tensor, Tensor]:
    """Images far from zero mean, and the gradient of each output."""
    generator = torch.Generator().manual_seed(1)
    images = 3 + torch.randn(IMAGES, 3, 6, 6, dtype=torch.float64, generator=generator)
    return images, torch.randn(IMAGES, 6, dtype=torch.float64, generator=generator)


def two_steps(model: nn.Module, images: Tensor, gradient: Tensor) -> dict[str, Tensor]:
    """Output and gradients of a pass, and the state after another."""
    images = images.clone().requires_grad_()
    output = model(images)
    output.backward(gradient)
    assert images.grad is not None
    model(2 * images)
    found = {"output": output.detach(), "images": images.grad}
    found |= {f"gradient {name}": p.grad for name, p in model.named_parameters() if p.grad is not None}
    return found | {f"state {name}": value for name, value in model.state_dict().items()}


def half(folder: Path, rank: int, first: int) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    model = network()
    synchronize_norms(model)
    images, gradient = batch()
    part = slice(first) if rank == 0 else slice(first, None)
    torch.save(two_steps(model, images[part], gradient[part]), folder / f"{rank}.pt")
    low = images[part].bfloat16()
    norm = nn.Sequential(nn.BatchNorm2d(3))
    synchronize_norms(norm)
    torch.save(norm(low).detach(), folder / f"low {rank}.pt")
    distributed.destroy_process_group()


def main() -> None:
    folder, first = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    child = os.fork()
    half(folder, 1 if child == 0 else 0, first)
    if child == 0:
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


if __name__ == "__main__":
    main()
