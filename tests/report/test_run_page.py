"""The page of a run: what is on it, for runs of every kind."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from alltokens.data.loader import train_batches
from alltokens.data.order import Share
from alltokens.evaluate.classification import Answers, confusions, worst_mistakes
from alltokens.models.timm_model import TimmConfig
from alltokens.models.zoo import find
from alltokens.objectives.classify import ClassifyConfig
from alltokens.objectives.token_label import TokenLabelConfig
from alltokens.report.page import whole_percent, write_page
from alltokens.report.run_page import describe_objective, model_name, run_page
from alltokens.report.samples import MISTAKES, SAMPLES, training_pictures, words_for
from alltokens.sources.decode import Unreadable
from alltokens.train.trainer import open_data

from ..train.toy_runs import toy_config, toy_data
from .toy_pages import Parsed, toy_answers, toy_reports, toy_run, toy_source

HOSTILE = "<script>alert(1)</script>"
NAMES = ["cat", "dog", "owl"]


def classes(count: int) -> list[str]:
    return [f"class {number}" for number in range(count)]


def references(page: str) -> list[str]:
    """All that a browser may fetch."""
    fetched = ("src", "href", "srcset", "data", "poster", "action", "background", "xlink:href")
    return [value for _, found in Parsed(page).tags for name, value in found.items() if name in fetched]


@pytest.mark.parametrize("epochs", [1, 2, 300])
@pytest.mark.parametrize("count", [2, 10, 200])
def test_a_page_is_small_and_refers_to_nothing_outside_itself(epochs, count):
    run = toy_run(classes(count), images=2 * count)
    page = run_page(run, toy_reports(epochs), toy_answers(run))
    assert "http://" not in page
    assert "https://" not in page
    assert "url(" not in page
    assert "@import" not in page
    assert all(reference.startswith("data:") for reference in references(page))
    assert len(page) < 2_000_000


def test_names_from_outside_are_escaped_wherever_they_come_from():
    run = toy_run([HOSTILE, f'"{HOSTILE}', "c"])
    source = replace(toy_source(run.classes, 40, name=HOSTILE), keys=[f"{HOSTILE}{index}" for index in range(40)])
    run.train.source = run.validation.source = source
    run = replace(
        run, folder=Path(HOSTILE), config=HOSTILE, environment={"command": [HOSTILE], HOSTILE: HOSTILE, "n": [HOSTILE]}
    )
    page = run_page(run, toy_reports(2), toy_answers(run))
    assert "<script" not in page
    parsed = Parsed(page)
    assert not parsed.named("script")
    assert not [name for _, found in parsed.tags for name in found if name.startswith("on")]
    assert parsed.text.count(HOSTILE) > 20
    known = (
        "html head meta link title style body header main footer p h1 h2 h3 ul li div span dl dt dd figure figcaption"
    )
    known += " svg g line text polyline circle rect i b br small img table tr th td details summary pre"
    assert {name for name, _ in parsed.tags} <= set(known.split())


def test_no_script_may_run_and_nothing_may_be_loaded():
    page = run_page(toy_run(NAMES), toy_reports(1), None)
    (policy,) = [found["content"] for found in Parsed(page).named("meta") if "http-equiv" in found]
    assert policy == "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def test_the_best_epoch_and_what_it_cost_are_at_the_top():
    reports = toy_reports(3)
    for line, right in zip(reports, (0.25, 0.625, 0.625), strict=True):
        line["top1"] = right
    run = toy_run(classes(10))
    text = Parsed(run_page(run, reports, toy_answers(run))).text
    assert "Epoch 3 of 300" in text
    assert "Top-1 62.5% best, epoch 2" in text
    assert "Top-1 now 62.5% epoch 3" in text
    assert "Time 1 min 12 s" in text  # three times 20 and 4 seconds
    assert "Speed 1,234 images a second; 3 % of the time waiting for data" in text


def test_a_finished_run_says_so():
    page = run_page(toy_run(NAMES, epochs=2), toy_reports(2), None)
    assert "Finished, 2 epochs" in page
    assert "Epoch 2 of 2" not in page


def test_five_classes_have_no_top_5():
    for count, shown in [(5, False), (6, True)]:
        run = toy_run(classes(count))
        assert ("op-5" in run_page(run, toy_reports(1), toy_answers(run))) == shown


def test_a_run_without_held_out_images_says_so_and_shows_the_rest():
    page = run_page(toy_run(NAMES, validation=False), toy_reports(3, evaluated=False), None)
    assert "This run has no held-out images" in page
    assert "Worst mistakes" not in page
    assert "Accuracy" not in page
    assert len(Parsed(page).named("img")) == SAMPLES


def test_up_to_thirty_classes_are_a_matrix_and_more_a_table():
    few, many = toy_run(classes(30), images=60), toy_run(classes(31), images=62)
    page = run_page(few, toy_reports(1), toy_answers(few))
    assert len(Parsed(page).named("rect", "floor")) == 900
    assert not Parsed(page).named("td", "count")
    answers = toy_answers(many)
    page = run_page(many, toy_reports(1), answers)
    assert not Parsed(page).named("rect", "floor")
    rows = confusions(answers)[:20]
    assert len(Parsed(page).named("td", "count")) == len(rows) == 20
    truth, taken, count = rows[0]
    assert f'<td>class {truth}</td><td>class {taken}</td><td class="count">{count}</td>' in page
    # Every class has its bar, the worst at once and the others to be opened.
    bars = Parsed(page).named("span", "name")
    assert sorted(found["title"] for found in bars) == sorted(many.classes)


def test_the_worst_mistakes_are_shown_with_what_they_were_taken_for():
    run = toy_run(NAMES, images=60)
    answers = toy_answers(run)
    page = run_page(run, toy_reports(1), answers)
    worst = worst_mistakes(answers, MISTAKES)
    places = [page.index(f"loss {answers.loss[place]:.2f} · {answers.keys[place]}") for place in worst]
    assert places == sorted(places)
    first = worst[0]
    truth, taken = NAMES[answers.truth[first]], NAMES[answers.first[first, 0]]
    shown = Parsed(page[page.index("Worst mistakes") :]).text
    assert f"{truth} taken for {taken} , {100 * answers.certainty[first, 0]:.0f} %" in shown


def test_no_mistake_is_a_sentence():
    run = toy_run(NAMES)
    scores = 9 * torch.nn.functional.one_hot(run.validation.classes, 3).double()
    answers = Answers.of(run.validation.source.keys, run.validation.classes, scores)
    assert "Every held-out image is taken for what it is." in run_page(run, toy_reports(1), answers)


def test_images_that_cannot_be_read_any_more_stop_nothing():
    def unreadable(index: int):
        raise OSError("the disk is gone")

    run = toy_run(NAMES)
    answers = toy_answers(run)
    gone = replace(run.train.source, load=unreadable)
    with pytest.raises(Unreadable):
        gone.image(0)
    run.train.source = run.validation.source = gone
    page = run_page(run, toy_reports(1), answers)
    assert "The first images of the epoch cannot be read." in page
    assert page.count("cannot be read</span>") == min(MISTAKES, int((~answers.is_right()).sum()))
    assert not Parsed(page).named("img")


def test_a_page_draws_no_global_random_number():
    run = toy_run(NAMES)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    run_page(run, toy_reports(2), toy_answers(run))
    assert torch.get_rng_state().equal(before)


def test_samples_are_those_that_the_epoch_trains_on(tmp_path):
    config = toy_config(toy_data(tmp_path))
    data = open_data(config)
    pictures = training_pictures(data.train, config.objective, (4, 4), data.classes, 1)
    batch = next(train_batches(data.train, Share(batch=8), range(1, 2)))
    assert [picture.key for picture in pictures[:8]] == list(batch.keys)
    assert [picture.name for picture in pictures[:8]] == [data.classes[number] for number in batch.classes]
    assert all(picture.drawn != picture.image for picture in pictures)
    assert all(sum(line.share for line in picture.legend) <= 1 for picture in pictures)
    relabel = ClassifyConfig(image_target="score_map")
    for picture in training_pictures(data.train, relabel, (4, 4), data.classes, 1):
        assert not picture.drawn
        assert sum(line.share for line in picture.legend) == pytest.approx(1, abs=0.05)
    assert all(
        not one.drawn and not one.legend
        for one in training_pictures(data.train, ClassifyConfig(), (4, 4), data.classes, 1)
    )


def test_objectives_have_names():
    for objective, words in [
        (TokenLabelConfig(), "Token labels"),
        (ClassifyConfig(), "Class labels"),
        (ClassifyConfig(image_target="score_map"), "Score maps over the view (ReLabel)"),
        (ClassifyConfig(image_target="blend"), "Class labels blended with score maps"),
    ]:
        assert describe_objective(objective) == words


def test_models_are_called_what_they_are_called_elsewhere():
    published = find("lvvit_s")
    assert model_name(replace(published, classes=7, drop_path=0.3, token_head=False, token_weight=0.0)) == "lvvit_s"
    assert model_name(replace(published, width=390)) == "Transformer of 16 blocks, width 390"
    assert model_name(TimmConfig(name="resnet18", image_size=(64, 64))) == "timm/resnet18"


def test_commands_can_be_pasted():
    page = run_page(toy_run(NAMES), toy_reports(1), None)
    assert "alltokens train &#39;lvvit_s plain&#39;</pre>" in page
    assert "alltokens train runs/toy/config.yaml --folder runs/toy-again</pre>" in page


def test_a_wordnet_id_is_shown_as_its_first_word():
    assert words_for("n01440764") == "tench"
    assert words_for("my class, with a comma") == "my class, with a comma"


def test_a_small_share_is_not_nothing():
    words = [whole_percent(share).replace("\N{NO-BREAK SPACE}", " ") for share in (0.0, 0.004, 0.01, 0.714, 1.0)]
    assert words == ["0 %", "below 1 %", "1 %", "71 %", "100 %"]


def test_a_page_with_names_that_are_no_utf_8_is_written(tmp_path):
    write_page(tmp_path / "report.html", "caf\udce9 é")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == "caf\\udce9 é"
