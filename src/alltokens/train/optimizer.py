"""What moves the weights: optimizers, the parameters that decay, clipping, and the end of a run that diverges."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any, Literal, cast

import torch
from timm.models import group_parameters
from timm.optim import Lamb
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from alltokens.errors import RunFailed, UserError, require
from alltokens.models.timm_contract import TimmVisionTransformer
from alltokens.models.vit import VisionTransformer
from alltokens.shapes import Bool, Float
from alltokens.train.sharding import local, whole


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """How gradients become steps; the defaults are token labeling's (TL-supp, Table 1)."""

    kind: Literal["adamw", "sgd", "lamb"] = "adamw"
    """torch's AdamW, its SGD with Nesterov's momentum, or timm's LAMB."""
    learning_rate: float = 1e-3
    """Highest learning rate of the run, at `reference_batch` images a step."""
    reference_batch: int | None = 640
    """Images a step for which the learning rate holds, which grows with the batch; None: it holds for any batch."""
    weight_decay: float = 0.05
    """Of matrices and kernels; biases, norms, gains, class tokens and positions do not decay."""
    betas: tuple[float, float] | None = None
    """Of AdamW and LAMB: how much the averages of gradients and of their squares keep; 0.9 and 0.999 if not given."""
    momentum: float | None = None
    """Of SGD: how much the average of gradients keeps; 0.9 if not given."""
    layer_decay: float | None = None
    """Factor on the learning rate from each layer to the one below it; none: all layers learn alike."""
    clip: float | None = None
    """Longest gradient, of all parameters together; none: no limit."""

    def __post_init__(self) -> None:
        for name in ("learning_rate", "reference_batch", "clip"):
            value = getattr(self, name)
            require(value is None or 0 < value < math.inf, f"{name} must be above 0; got {name}={value}")
        require(
            0 <= self.weight_decay < math.inf, f"weight_decay must be at least 0; got weight_decay={self.weight_decay}"
        )
        for name, kept in (("betas", self.betas or ()), ("momentum", (self.momentum or 0.0,))):
            require(
                all(0 <= part < 1 for part in kept), f"{name} must be at least 0 and below 1; got {getattr(self, name)}"
            )
        require(
            self.layer_decay is None or 0 < self.layer_decay < 1,
            f"layer_decay must be between 0 and 1, or none; got layer_decay={self.layer_decay}",
        )
        idle = "betas" if self.kind == "sgd" else "momentum"
        require(
            getattr(self, idle) is None, f"{idle} has no effect with kind={self.kind}; got {idle}={getattr(self, idle)}"
        )


def peak_learning_rate(config: OptimizerConfig, effective_batch: int) -> float:
    """The highest rate for steps of this many images, over all processes and accumulated parts."""
    if config.reference_batch is None:
        return config.learning_rate
    return config.learning_rate * effective_batch / config.reference_batch


def build_optimizer(module: nn.Module, config: OptimizerConfig, effective_batch: int) -> torch.optim.Optimizer:
    """An optimizer of all that is trained in a module, such as an objective with its model inside."""
    groups = parameter_groups(module, config)
    rate = peak_learning_rate(config, effective_batch)
    for group in groups:
        group["lr"] = rate * group["lr_scale"]
    betas = config.betas or (0.9, 0.999)
    # One kernel for all parameters on a GPU; on a CPU torch's plain loop, the same in every run.
    parameters = [parameter for group in groups for parameter in group["params"]]
    fused = all(parameter.is_cuda for parameter in parameters)
    match config.kind:
        case "adamw":
            return torch.optim.AdamW(groups, betas=betas, fused=fused)
        case "sgd":
            momentum = 0.9 if config.momentum is None else config.momentum
            optimizer = torch.optim.SGD(groups, momentum=momentum, nesterov=momentum > 0, fused=fused)
            if momentum > 0:
                # torch's fused kernel would begin with whatever the memory holds, and leave that if it is held back.
                for parameter in parameters:
                    optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
            return optimizer
        case "lamb":
            # timm's own limit on gradients is left to `clip`, as for the others.
            return Lamb(groups, betas=betas, max_grad_norm=None)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """The rate of the next step, lower in lower layers where there is a layer decay."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["lr_scale"]


def parameter_groups(module: nn.Module, config: OptimizerConfig) -> list[dict[str, Any]]:
    """Parameters that share a weight decay and a factor on the learning rate.

    As in timm, what decays is neither a vector nor a bias nor on the model's own list of exceptions; frozen parameters
    are left out; layers are the model's own, the last of them with the factor 1, and so is all outside the model.
    """
    contract = contract_of(module)
    exempt = contract.exempt if contract else set()
    layers = layers_of(contract) if config.layer_decay else {}
    last = max(layers.values(), default=0)
    groups: dict[tuple[int, bool], dict[str, Any]] = {}
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            continue
        still = parameter.ndim <= 1 or name.endswith(".bias") or any(fnmatch(name, pattern) for pattern in exempt)
        layer = layers.get(name, last)
        group = {
            "params": [],
            "lr_scale": (config.layer_decay or 1.0) ** (last - layer),
            "weight_decay": 0.0 if still else config.weight_decay,
        }
        groups.setdefault((layer, still), group)["params"].append(parameter)
    if not groups:
        raise UserError("nothing is left to train: every parameter is frozen; leave one part of the model trainable")
    return list(groups.values())


@dataclass(frozen=True)
class Contract:
    """timm's contract of the model inside a module, and where it lies there."""

    model: Any
    prefix: str
    """What the module's names have before those of the model."""
    own_prefix: str = ""
    """What the model's names have where the module's have `prefix`."""

    @property
    def exempt(self) -> set[str]:
        """Patterns of names, in the module, of parameters that do not decay."""
        names = self.model.no_weight_decay() if hasattr(self.model, "no_weight_decay") else ()
        return {self.renamed(name) for name in names}

    def renamed(self, name: str) -> str:
        """A name of the model's as it is in the module."""
        return self.prefix + name.removeprefix(self.own_prefix)


def contract_of(module: nn.Module) -> Contract | None:
    """The first model in a module that says which of its parameters are special."""
    for name, part in module.named_modules():
        prefix = f"{name}." if name else ""
        if isinstance(part, VisionTransformer):
            # Within timm our model lies under the name `model`; a twin without weights knows the contract.
            with torch.device("meta"):
                return Contract(TimmVisionTransformer(part.config, part.config.classes), prefix, "model.")
        if hasattr(part, "group_matcher"):
            return Contract(part, prefix)
    return None


def layers_of(contract: Contract | None) -> dict[str, int]:
    """The layer of each of the model's parameters, by its name in the module."""
    if contract is None:
        raise UserError("layer_decay needs a model that says what its layers are, and this one does not; leave it out")
    matcher = contract.model.group_matcher(coarse=False)
    layers = group_parameters(contract.model, matcher, reverse=True)
    return {contract.renamed(name): layer for name, layer in layers.items()}


def clip_gradients(parameters: Iterable[nn.Parameter], limit: float | None) -> Float[Tensor, ""]:
    """Shorten the gradients of all parameters together to the limit; how long they were stays on the device."""
    parameters = [parameter for parameter in parameters if parameter.grad is not None]
    norm = whole(nn.utils.get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None]))
    if limit is not None:
        nn.utils.clip_grads_with_norm_(parameters, limit, norm)
    return norm


def hold_back(optimizer: torch.optim.Optimizer, broken: Bool[Tensor, ""]) -> None:
    """Let the next step bring nothing that is not finite into the weights if `broken` is true, on the device."""
    groups: list[dict[str, Any]] = optimizer.param_groups
    parameters = [parameter for group in groups for parameter in group["params"] if parameter.grad is not None]
    if all(group.get("fused") for group in groups) and not any(isinstance(one, DTensor) for one in parameters):
        # A kernel for each parameter would take 4 % of a GPU's step; torch's own hook for a scaler costs nothing.
        cast(Any, optimizer).found_inf = broken.float()
        return
    for parameter in parameters:
        local(parameter.grad).masked_fill_(broken, 0.0)


class FiniteCheck:
    """Numbers of a step on their way from the device, to be looked at later, by when they have arrived.

    Read when the next step has been handed to the device, it holds nothing up: the device has work in the meantime.
    """

    def __init__(self, step: int, values: dict[str, Tensor]) -> None:
        self.step, self.names = step, list(values)
        numbers = torch.stack([value.detach().float() for value in values.values()])
        self.broken: Bool[Tensor, ""] = ~numbers.isfinite().all()
        """Whether one of them is not finite, on the device."""
        self.arrived: torch.cuda.Event | None = None
        self.numbers = numbers
        if numbers.is_cuda:
            self.numbers = torch.empty_like(numbers, device="cpu", pin_memory=True)
            self.numbers.copy_(numbers, non_blocking=True)
            # Whoever waits for it sleeps: the core is for those that decode.
            self.arrived = torch.cuda.Event(blocking=True)
            self.arrived.record()

    def read(self) -> dict[str, float]:
        """The values; one that is not finite ends the run, which must not save what came of it."""
        if self.arrived is not None:
            self.arrived.synchronize()
        values = dict(zip(self.names, self.numbers.tolist(), strict=True))
        broken = [f"{name} is {value}" for name, value in values.items() if not math.isfinite(value)]
        if broken:
            raise RunFailed(
                f"training diverged in step {self.step}: {', '.join(broken)}; "
                "lower learning_rate, lengthen the warm-up or set clip"
            )
        return values
