"""`alltokens recipes`, and `alltokens train RECIPE --dry-run`."""

import json
import re
from dataclasses import replace

import pytest
import yaml

from alltokens.cli.main import main
from alltokens.models.counts import count
from alltokens.models.zoo import MODELS
from alltokens.plain import from_plain
from alltokens.recipes.memory import memory_of
from alltokens.recipes.names import RECIPES
from alltokens.train.config import TrainConfig


def test_a_line_has_the_model_the_labels_and_the_printed_accuracy(capsys):
    assert main(["recipes", "tl_t6_lvvit_l_*"]) == 0
    heading, *lines = capsys.readouterr().out.splitlines()
    assert heading.split() == "recipe model labels top-1 (%) printed in".split()
    assert lines[0].split() == "tl_t6_lvvit_l_288 lvvit_l_288 store 85.3 TL, Table 6, line 235".split()
    assert len(lines) == 4


def test_an_accuracy_has_the_decimals_of_the_paper(capsys):
    assert main(["recipes", "cait_b_no_class_layerscale"]) == 0
    assert "  83.36  CaiT, Appendix B, line 578" in capsys.readouterr().out
    assert main(["recipes", "3t_t1_vit_l_300"]) == 0
    assert "  83.0  3T, Table 1, line 79" in capsys.readouterr().out


def test_json_holds_all_that_there_is_to_say(capsys):
    assert main(["recipes", "tlv1_t3_384", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {
            "name": "tlv1_t3_384",
            "model": "lvvit_s_384",
            "labels": "store",
            "annotator": "nfnet_f6",
            "start": "tlv1_t3_token_labels",
            "top1": 84.4,
            "where": "TL-v1, Table 3",
            "line": 189,
            "also": [],
            "cost": [],
            "note": "",
            "released": [
                "model.residual.divide_by",
                "objective.smoothing",
                "objective.rule",
                "model.token_weight",
                "augment.interpolation",
                "evaluation.crop",
                "schedule.warmup_rate",
                "average.decay",
                "average.reference_batch",
                "average.warmup",
                "repeats",
                "model.qkv_bias",
                "model.norm.eps",
            ],
            "timm": [
                "augment.scale",
                "augment.ratio",
                "augment.hflip",
                "augment.vflip",
                "augment.color_jitter",
                "augment.mean",
                "objective.finish.mean",
                "objective.finish.std",
                "objective.mix.alpha",
                "objective.mix.probability",
                "evaluation.interpolation",
                "schedule.cooldown_epochs",
            ],
            "ours": ["seed", "schedule.final_rate", "precision"],
        }
    ]


def test_a_row_without_an_accuracy_has_its_place_unless_that_of_the_same_training_is_printed(capsys):
    assert main(["recipes", "tl_f5_deit_[sb]_plain_labels"]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()[1:]] == [
        "tl_f5_deit_s_plain_labels deit_s classes 79.9 TL, Table 4, line 171".split(),
        "tl_f5_deit_b_plain_labels deit_b classes TL, Figure 5, line 184".split(),
    ]


def test_json_has_the_figure_beside_the_table_that_prints_the_accuracy(capsys):
    assert main(["recipes", "tl_f5_deit_s_plain_labels", "--format", "json"]) == 0
    (line,) = json.loads(capsys.readouterr().out)
    assert (line["where"], line["also"]) == ("TL, Table 4", ["TL, Figure 5, line 184"])


def test_json_has_what_its_authors_say_of_a_row(capsys):
    assert main(["recipes", "tl_f4_lvvit_s_participation_20", "--format", "json"]) == 0
    (line,) = json.loads(capsys.readouterr().out)
    assert line["top1"] is None
    assert line["note"].startswith("0.5 points below all tokens (TL, section 4.2, line 159); released with ")


def test_json_has_the_machines_and_the_time_it_took(capsys):
    assert main(["recipes", "tl_t4_lvvit_s_tl", "--format", "json"]) == 0
    (line,) = json.loads(capsys.readouterr().out)
    assert line["cost"] == ["45 hours on 8 V100, of which of the two models is not said (TL, Table 4, line 173)"]
    assert line["cost"][0] in RECIPES["tl_t4_lvvit_s_tl"].sentence()


def test_all_are_listed(capsys):
    assert main(["recipes", "--format", "json"]) == 0
    assert [line["name"] for line in json.loads(capsys.readouterr().out)] == list(RECIPES)


def test_a_pattern_without_a_match_names_the_closest(capsys):
    assert main(["recipes", "tl_t6_lvvit_l_280"]) == 2
    assert capsys.readouterr().err.startswith("error: no recipe matches 'tl_t6_lvvit_l_280'; did you mean tl_t6_lvvit")


def test_a_dry_run_prints_the_config_and_what_follows_from_it(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "lvvit_s_token_labels", "--dry-run", "--batch", "512", "--accumulate", "2"]) == 0
    printed = capsys.readouterr().out
    config = from_plain(TrainConfig, yaml.safe_load(printed))
    assert (config.batch, config.accumulate, config.model.depth) == (512, 2, 16)
    _, *comments = printed.split("\n# ")
    assert comments[:2] == [
        "effective batch: 512 images a step, 256 at a time in 1 process",
        "learning rate: 0.0008 at its highest",
    ]
    assert comments[2].startswith("memory of a process, about: ")
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_says_what_the_recipe_says_of_itself(capsys):
    assert main(["train", "cait_a_frozen_12", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    said = printed[printed.index("# the recipe ") :].replace("\n#  ", "").removeprefix("# the recipe ").rstrip()
    assert said == f"cait_a_frozen_12: {RECIPES['cait_a_frozen_12'].__doc__}"


@pytest.mark.parametrize(("name", "counted"), [("tl_t4_lvvit_s_online_tl", False), ("tl_t4_lvvit_s_tl", True)])
def test_a_dry_run_says_that_a_teacher_takes_memory_too(capsys, name, counted):
    assert main(["train", name, "--dry-run"]) == 0
    assert ("the teacher's memory is besides" not in capsys.readouterr().out) == counted


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--batch", "2"], "final_rate must not be above the learning rate of this batch size, 1.95313e-06; "),
        (["--batch", "3", "--optimizer.reference-batch", "None"], "batch must be a multiple of 2, two images for "),
    ],
)
def test_a_dry_run_refuses_what_training_does(capsys, flags, sentence):
    assert main(["train", "lvvit_t_plain_labels", "--dry-run", *flags]) == 2
    assert capsys.readouterr().err.startswith(f"error: {sentence}")


def test_a_dry_run_knows_what_saves_memory(capsys, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "8")

    def memory(*flags: str) -> dict[str, float]:
        assert main(["train", "lvvit_s_token_labels", "--dry-run", *flags]) == 0
        (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("# memory"))
        return {part: float(amount) for part, amount in re.findall(r"(\w+) (\d+\.\d+)", line.partition("(")[2])}

    usual = memory()
    assert memory("--shard", "True")["optimizer"] < usual["optimizer"] / 4
    assert memory("--recompute", "True")["activations"] < usual["activations"] / 2


def test_processes_share_the_batch_of_a_dry_run(capsys, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert main(["train", "lvvit_s_plain_labels", "--dry-run"]) == 0
    assert "effective batch: 1024 images a step, 128 at a time in 8 processes" in capsys.readouterr().out


def test_what_was_printed_is_a_recipe(capsys, tmp_path):
    assert main(["train", "tl_t5_resnest50_token_labels", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    (tmp_path / "printed.yaml").write_text(printed)
    assert main(["train", str(tmp_path / "printed.yaml"), "--dry-run"]) == 0
    config, _about_the_recipe = printed.split("# the recipe ")
    assert capsys.readouterr().out == config


def test_memory_is_counted_by_the_rule():
    config = RECIPES["lvvit_t_token_labels"].config
    memory = memory_of(config, processes=4)
    weights = 4 * count(MODELS["lvvit_t"]).parameters
    assert (memory.weights, memory.gradients, memory.optimizer, memory.average) == (
        weights,
        weights,
        2 * weights,
        weights,
    )
    # By hand: two norms and three linear layers keep their input, the product its queries, keys and values, the MLP
    # both sides of its activation; of three convolutions at 112 x 112, the outputs and those of their activations; and
    # the patches that the last one is laid out in for the fourth.
    blocks = 12 * (197 * 240 * (2 + 3 + 3 + 2 * 3) + 4 * 197 * 197)
    stem = 3 * 224 * 224 + 112 * 112 * 64 * (3 * 2 + 1)
    assert memory.activations == pytest.approx(256 * 2 * (blocks + stem), rel=0.02)
    in_one_process = memory_of(replace(config, precision="float32"))
    assert in_one_process.activations == pytest.approx(8 * memory.activations, rel=1e-3)
    assert in_one_process.total == 5 * weights + in_one_process.activations


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["tl_t6_lvvit_s_384", "--data.root", "x", "--data.labels", "y"],
            "'tl_t6_lvvit_s_384' begins with trained weights; "
            "give --initial FILE, such as runs/tl_t6_lvvit_s/best/model.safetensors",
        ),
        (["tl_t6_lvvit_s"], "there is nothing to train on; give --data.root FOLDER"),
    ],
)
def test_what_is_the_users_own_is_asked_for(arguments: list[str], sentence: str, capsys):
    assert main(["train", *arguments]) == 2
    assert capsys.readouterr().err == f"error: {sentence}\n"
