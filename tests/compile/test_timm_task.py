"""timm's hook compiles the token label task: one graph to train with, one to evaluate, whatever mix is drawn."""

from dataclasses import replace

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from alltokens.objectives.timm_task import TokenLabelTask

from ..kinds import TINY, images_for, lively
from ..labels.score_maps import random_maps, turned_views

CONFIG = replace(TINY, token_head=True)


@pytest.mark.parametrize("ema", [False, True])
def test_a_compiled_task_has_the_eager_losses_and_gradients(ema: bool) -> None:
    torch._dynamo.reset()
    images = images_for(CONFIG, batch=4)
    target = torch.arange(4), random_maps(4, 3, 4, 6, CONFIG.classes), turned_views(torch.float32)
    eager, compiled = (TokenLabelTask(lively(CONFIG), torch.Generator().manual_seed(3)) for _ in range(2))
    if ema:
        compiled.setup_ema()
    backend = CompileCounterWithBackend("aot_eager")
    assert compiled.compile(backend=backend) is compiled.get_eval_model()
    for _ in range(3):
        answers = [task(images, target) for task in (compiled, eager)]
        torch.testing.assert_close(*answers)
        for task, answer in zip((compiled, eager), answers, strict=True):
            task.zero_grad()
            answer["loss"].backward()
        torch.testing.assert_close(*([each.grad for each in task.get_clip_parameters()] for task in (compiled, eager)))
    assert backend.frame_count == 1
    torch.testing.assert_close(compiled.get_eval_model()(images), eager.get_eval_model()(images))
    assert backend.frame_count == 2
    if ema:
        average = compiled.compile_ema(backend="aot_eager")
        assert average is compiled.get_eval_model(ema=True)
        torch.testing.assert_close(average(images), eager.eval().get_eval_model()(images))
