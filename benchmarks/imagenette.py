"""LV-ViT-T on Imagenette's photos at 128 pixels under every kind of supervision, at least two seeds each.

    python benchmarks/imagenette.py --data FOLDER --folder RUNS                 # train.tar.gz and val.tar.gz in FOLDER
    python benchmarks/imagenette.py --data FOLDER --folder RUNS --at-once 2     # two trainings side by side
    python benchmarks/imagenette.py --data FOLDER --folder RUNS --rows best     # some of the rows alone

Labels, and answers while it trains, are EfficientNet-Lite2's with its weights on pip, over ImageNet's 1000 classes. The
accuracy is that of the averaged weights after the last epoch, by the image's head alone (and, where tokens have a head,
with half of its highest answers added), among the classes that the photos are of. Light augmentation is crops, flips
and colours alone, where the recipe has RandAugment and erasing. Batches of 512 are half as many steps. Squashed photos
are made squares before all else. Plain labels have a head of the photos' own classes, or of all 1000 as token labels
do: then smoothing, too, goes to all of them. Without smoothing nothing does. The best see the photos enlarged to 224
pixels, three times the tokens, in twice the epochs with twice the steps each. Every row is written to
benchmarks/results/imagenette.json as soon as it is known (imagenette_cpu.json without a GPU); a second call goes on
where the first was stopped, within a row too.
"""

import argparse
import multiprocessing
import os
import tarfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from PIL import Image
from timing import environment, read_results, write_results

from alltokens.annotate.annotator import open_annotator
from alltokens.annotate.canvas import Canvas
from alltokens.annotate.class_map import class_names
from alltokens.annotate.write import Job, annotate, usual_records_per_shard
from alltokens.annotate.write import Machine as Annotating
from alltokens.data.loader import evaluation_batches
from alltokens.data.order import Share
from alltokens.data.samples import EvaluationConfig, EvaluationSamples
from alltokens.evaluate.classification import Answers
from alltokens.files import write_folder
from alltokens.models.factory import open_model
from alltokens.objectives.classify import ClassifyConfig, evaluate
from alltokens.objectives.distill import DistillConfig
from alltokens.objectives.mixing import MixConfig
from alltokens.objectives.token_label import TokenLabelConfig
from alltokens.plain import to_plain
from alltokens.progress import progress
from alltokens.recipes.token_labeling import supervised
from alltokens.sources.decode import decode
from alltokens.sources.source import open_source
from alltokens.train.average import AverageConfig
from alltokens.train.config import DataConfig, TrainConfig
from alltokens.train.machine import Machine
from alltokens.train.optimizer import OptimizerConfig
from alltokens.train.run_folder import weights_of_run
from alltokens.train.schedule import ScheduleConfig
from alltokens.train.trainer import train

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
NAME = "imagenette" if CUDA else "imagenette_cpu"
CORES = len(os.sched_getaffinity(0))
TEACHER, LABEL_SIDE = "pip/efficientnet_lite2", 256
SIDE, BATCH, EPOCHS, SEEDS = 128, 256, 100, (0, 1)
BEST_SIDE, BEST_BATCH, BEST_EPOCHS = 224, 128, 200
RATE = 1e-3
CLASS, MAP, WIDE = "token labels, class label", "token labels, score map", "plain labels, 1000 classes"
NOTHING = 1e-9
"""A weight that leaves tokens without a say."""
PUBLISHED, LIGHT, LARGE, SQUASHED = ", published alignment", ", light augmentation", ", batch 512", ", squashed photos"
SHARP = "plain labels, no smoothing"
ROWS = (
    "plain labels",
    CLASS,
    MAP,
    "ReLabel",
    "online token labels",
    "hard distillation",
    CLASS + PUBLISHED,
    MAP + PUBLISHED,
    "plain labels" + LIGHT,
    CLASS + LIGHT,
    "plain labels" + LIGHT + LARGE,
    CLASS + LIGHT + LARGE,
    "plain labels" + LIGHT + LARGE + SQUASHED,
    CLASS + LIGHT + LARGE + SQUASHED,
    SHARP,
    WIDE,
    WIDE + LIGHT + LARGE + SQUASHED,
)
BESTS = ("best", "best" + LIGHT)
Shape = Callable[[Image.Image], Image.Image]
Run = tuple[str, int]
"""A row and a seed."""
MIX = MixConfig(kind="token")


def config_of(row: str, folder: Path, seed: int, epochs: int) -> TrainConfig:
    """LV-ViT-T's recipe for images of this size; the rate and the average are ours, for so short a run."""
    root = photos_of(row, folder, "train")
    source = open_source(str(root))
    data = DataConfig(root=str(root), labels=str(folder / "labels"))
    match kind_of(row):
        case "plain labels":
            objective, data = ClassifyConfig(mix=MIX), replace(data, labels=None)
        case "plain labels, no smoothing":
            objective, data = ClassifyConfig(smoothing=0.0, mix=MIX), replace(data, labels=None)
        case "ReLabel":
            objective = ClassifyConfig(image_target="score_map", mix=MIX)
        case "hard distillation":
            objective, data = DistillConfig(teacher=TEACHER, mix=MIX), replace(data, labels=None)
        case "online token labels":
            objective, data = TokenLabelConfig(teacher=TEACHER), replace(data, labels=None)
        case "token labels, score map":
            objective = TokenLabelConfig(image_target="score_map")
        case "token labels, class label" | "best":
            objective = TokenLabelConfig()
        case "plain labels, 1000 classes":
            objective = TokenLabelConfig(beta=NOTHING)
        case _:
            raise AssertionError(row)
    recipe = supervised("lvvit_t", "token_labels" if isinstance(objective, TokenLabelConfig) else "plain_labels")
    classes = len(source.classes) if kind_of(row) in ("plain labels", SHARP) else 1000
    side, batch = (BEST_SIDE if row in BESTS else SIDE), batch_of(row)
    augment = recipe.augment
    if LIGHT in row:
        objective = replace(objective, finish=replace(objective.finish, erase=0.0))
        augment = replace(augment, policy=None, color_jitter=0.4)
    steps = epochs * (len(source) // batch)
    return replace(
        recipe,
        model=replace(recipe.model, image_size=(side, side), classes=classes),
        data=replace(data, alignment="published") if row.endswith(PUBLISHED) else data,
        objective=objective,
        augment=augment,
        evaluation=EvaluationConfig(crop=1.0),
        optimizer=OptimizerConfig(learning_rate=RATE, reference_batch=None),
        schedule=ScheduleConfig(epochs=epochs, warmup_epochs=epochs / 20),
        average=AverageConfig(decay=round(max(0.9, 1 - 30 / steps), 4), reference_batch=None, warmup=True),
        batch=batch,
        precision="bf16" if CUDA else "float32",
        seed=seed,
    )


def kind_of(row: str) -> str:
    """Its supervision."""
    return row.removesuffix(SQUASHED).removesuffix(LARGE).removesuffix(LIGHT).removesuffix(PUBLISHED)


def batch_of(row: str) -> int:
    """Twice as large, for half as many steps, or half as large."""
    return BEST_BATCH if row in BESTS else 2 * BATCH if LARGE in row else BATCH


def photos_of(row: str, folder: Path, part: str) -> Path:
    """Those to train on (`train`) or to evaluate on (`val`)."""
    return folder / ("squashed" if row.endswith(SQUASHED) else "photos") / part


def prepare(data: Path, folder: Path) -> None:
    """Unpack the photos and annotate them, or find that it is done; labels are of parts, whatever a photo's shape."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, shape in (("photos", as_it_is), ("squashed", squashed)):
        if not (folder / name).exists():
            write_folder(folder / name, partial(unpack, data, shape))
    source, annotator = open_source(str(folder / "photos" / "train")), open_annotator(TEACHER, size=LABEL_SIDE)
    job = Job(
        source=source,
        annotator=annotator,
        canvas=Canvas("square", annotator.image_size, annotator.stride, annotator.interpolation),
        top_k=5,
        flip=False,
        class_map=None,
        records_per_shard=usual_records_per_shard(len(source)),
    )
    with progress("annotating", "images") as report:
        annotate(job, folder / "labels", Annotating(DEVICE, 256 if CUDA else 32, CORES), report)


def unpack(data: Path, shape: Shape, folder: Path) -> None:
    """Both archives, each into a folder of its name; decoded, a third of the workers' time otherwise."""
    for name in ("train", "val"):
        with tarfile.open(data / f"{name}.tar.gz") as archive:
            archive.extractall(folder / name, filter="data")
    with ThreadPoolExecutor(CORES) as pool:
        list(pool.map(partial(decode_file, shape), folder.rglob("*.jpg")))


def decode_file(shape: Shape, path: Path) -> None:
    """In the place of a JPEG file its pixels."""
    shape(decode(path.read_bytes())).save(path.with_suffix(".ppm"))
    path.unlink()


def as_it_is(photo: Image.Image) -> Image.Image:
    """In its own shape."""
    return photo


def squashed(photo: Image.Image) -> Image.Image:
    """As the square that the model sees."""
    return photo.resize((SIDE, SIDE), Image.Resampling.BICUBIC)


def row_figures(row: str, folder: Path, seed: int, epochs: int, at_once: int) -> dict[str, Any]:
    """Train, or go on, and evaluate."""
    torch.set_num_threads(max(1, CORES // at_once // 4))
    start = time.perf_counter()
    config = config_of(row, folder, seed, epochs)
    run = folder / f"{row}, seed {seed}".replace(",", "").replace(" ", "_")
    machine = Machine(DEVICE, workers=max(1, CORES // at_once), compile=CUDA)
    with progress(f"{row}, seed {seed}", "images", quiet=at_once > 1) as report:
        train(config, run, machine, report)
    figures = accuracy(config, run, photos_of(row, folder, "val"), machine)
    return figures | {"epochs": epochs, "seconds": round(time.perf_counter() - start, 1)}


@torch.inference_mode()
def accuracy(config: TrainConfig, run: Path, photos: Path, machine: Machine) -> dict[str, Any]:
    """Of the averaged weights after the last epoch, among the classes of the photos: the image's head, and tokens."""
    source = open_source(str(photos))
    own = tuple(source.classes)
    numbers = class_names(1000) if config.model.classes == 1000 else own
    samples = EvaluationSamples(source, numbers, config.evaluation, config.model.image_size)
    chosen = torch.tensor([numbers.index(name) for name in own], device=DEVICE)
    place = {number: new for new, number in enumerate(chosen.tolist())}
    model = open_model(weights_of_run(run, "last")).to(DEVICE).eval()
    trains_tokens = isinstance(config.objective, TokenLabelConfig) and config.objective.beta > NOTHING
    weights = {"top1": 0.0} | ({"top1_with_tokens": 0.5} if trains_tokens else {})
    answers: dict[str, list[Answers]] = {name: [] for name in weights}
    for batch in evaluation_batches(samples, Share(batch=512, drop_last=False), machine.workers, DEVICE):
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=CUDA):
            prediction = evaluate(model, batch.to(DEVICE), config.objective.finish)
        classes = torch.tensor([place[number] for number in batch.classes.tolist()])
        for name, weight in weights.items():
            answers[name].append(Answers.of(batch.keys, classes, prediction.scores(weight)[:, chosen]))
    return {name: round(100 * Answers.join(parts).accuracy(), 2) for name, parts in answers.items()}


def headline(runs: dict[str, Any]) -> dict[str, float]:
    """What the rows say together, once they are there; differences are of the seeds that both have."""
    means = {row: mean(one["top1"] for one in runs[row].values()) for row in runs if len(runs[row]) >= len(SEEDS)}
    figures = {f"{row}, mean": round(value, 2) for row, value in means.items()}
    differences = {
        "token_minus_plain": (CLASS, "plain labels"),
        "token_minus_plain_light_augmentation": (CLASS + LIGHT, "plain labels" + LIGHT),
        "token_minus_plain_light_augmentation_batch_512": (CLASS + LIGHT + LARGE, "plain labels" + LIGHT + LARGE),
        "token_minus_plain_squashed_photos": (
            CLASS + LIGHT + LARGE + SQUASHED,
            "plain labels" + LIGHT + LARGE + SQUASHED,
        ),
        "token_minus_plain_1000_classes": (CLASS, WIDE),
        "token_minus_plain_squashed_photos_1000_classes": (
            CLASS + LIGHT + LARGE + SQUASHED,
            WIDE + LIGHT + LARGE + SQUASHED,
        ),
        "aligned_minus_published": (CLASS, CLASS + PUBLISHED),
        "aligned_minus_published_score_map": (MAP, MAP + PUBLISHED),
    }
    for name, (one, other) in differences.items():
        if {one, other} <= means.keys():
            seeds = runs[one].keys() & runs[other].keys()
            figures[name] = round(mean(runs[one][seed]["top1"] - runs[other][seed]["top1"] for seed in seeds), 2)
    if best := best_row(runs):
        figures["best_top1"] = runs[best]["0"]["top1"]
    return figures


def best_row(runs: dict[str, Any]) -> str | None:
    """Of those that were meant to be."""
    return max((row for row in BESTS if row in runs), key=lambda row: runs[row]["0"]["top1"], default=None)


def lanes(runs: list[Run], count: int) -> list[list[Run]]:
    """The runs of each process: those that are compiled alike one after the other, which wait for that once."""
    alike: dict[tuple[str, int], list[Run]] = {}
    for row, seed in runs:
        alike.setdefault((kind_of(row), batch_of(row)), []).append((row, seed))
    groups = list(alike.values())
    while len(groups) < min(count, len(runs)):
        longest = groups.pop(groups.index(max(groups, key=len)))
        groups += [longest[::2], longest[1::2]]
    shared: list[list[Run]] = [[] for _ in range(count)]
    for group in sorted(groups, key=length, reverse=True):
        min(shared, key=length).extend(group)
    return shared


def length(runs: list[Run]) -> int:
    """How long runs take together, in those of 100 epochs at 128 pixels."""
    return sum(2 * BATCH // BEST_BATCH if row in BESTS else 1 for row, _ in runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder of train.tar.gz and val.tar.gz")
    parser.add_argument("--folder", type=Path, required=True, help="where photos, labels and runs lie")
    parser.add_argument("--rows", nargs="*", default=[*ROWS, *BESTS], choices=[*ROWS, *BESTS])
    parser.add_argument("--seeds", type=int, nargs="*", default=SEEDS)
    parser.add_argument("--epochs", type=int, help="other than 100, and 200 for the best: a trial, not written down")
    parser.add_argument("--at-once", type=int, default=1, help="trainings that go on at the same time")
    arguments = parser.parse_args()
    prepare(arguments.data, arguments.folder)
    results = read_results(NAME)
    runs: dict[str, Any] = results.get("runs", {})
    wanted = [(row, seed) for row in arguments.rows for seed in arguments.seeds if row not in BESTS or seed == 0]
    left = [(row, seed) for row, seed in wanted if arguments.epochs or str(seed) not in runs.get(row, {})]
    with ExitStack() as stack:
        waiting, failed = {}, []
        for lane in lanes(left, arguments.at_once):
            pool = stack.enter_context(ProcessPoolExecutor(1, multiprocessing.get_context("spawn")))
            for row, seed in lane:
                epochs = arguments.epochs or (BEST_EPOCHS if row in BESTS else EPOCHS)
                task = pool.submit(row_figures, row, arguments.folder, seed, epochs, arguments.at_once)
                waiting[task] = (row, seed)
        for task in as_completed(waiting):
            row, seed = waiting[task]
            if error := task.exception():
                print(row, seed, "failed:", error, flush=True)
                failed.append(f"{row}, seed {seed}")
                continue
            print(row, seed, task.result(), flush=True)
            if arguments.epochs is None:
                runs.setdefault(row, {})[str(seed)] = task.result() | {"date": environment()["date"]}
                best = best_row(runs)
                config = to_plain(config_of(best, arguments.folder, 0, BEST_EPOCHS)) if best else None
                write_results(NAME, environment() | headline(runs) | {"runs": runs, "best_config": config})
    for key, value in headline(runs).items():
        print(f"{key:40} {value}")
    if failed:
        raise SystemExit(f"these rows failed: {'; '.join(failed)}")


if __name__ == "__main__":
    main()
