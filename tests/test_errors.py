"""Suggestions are close, few, and absent where nothing is close."""

from alltokens.errors import UserError, did_you_mean


def test_a_user_error_is_a_value_error():
    assert issubclass(UserError, ValueError)


def test_the_closest_words_come_first():
    assert did_you_mean("lvit_s", ["cait_m36", "lvvit_t", "lvvit_s"]) == "; did you mean lvvit_s, lvvit_t?"


def test_three_words_at_most():
    assert did_you_mean("aaaa", ["aaab", "aaba", "abaa", "baaa"]).count(",") == 2


def test_nothing_close_is_nothing_said():
    assert did_you_mean("xyz", ["lvvit_s"]) == ""
