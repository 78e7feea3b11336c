"""What ``auto`` decides, and when, with workers and steps that a script plays."""

import dataclasses
import math
import random

import pytest
from thinwire.torch.search import PLAIN, Phase, Prospect, Search

SLOW, FAST, LOSSY = "slow", "fast", "lossy"


class Played:
    """Steps that take what ``seconds_of`` says for a spec, with some noise; a process's first ones ``at_first`` times as long."""

    def __init__(self, seconds_of, prospects, noise=0.0, seed=0, at_first=1.0):
        self.seconds_of, self.at_first = seconds_of, at_first
        self.random, self.noise = random.Random(seed), noise
        self.asked = self.probed = 0
        self.agreements = 0
        self.prospects = [Prospect(spec, seconds, 0.1, 2.0) for spec, seconds in prospects.items()]
        self.message = 0.9
        self.search = Search(self.agree, self.ask, self.probe)
        self.specs = []

    def agree(self, numbers):
        self.agreements += 1
        assert all(math.isfinite(number) for number in numbers)
        return list(numbers)

    def probe(self):
        self.probed += 1
        return self.message

    def ask(self):
        self.asked += 1
        return self.prospects

    def step(self):
        spec = self.search.spec
        self.specs.append(spec)
        seconds = self.seconds_of[spec] * (1 + self.noise * self.random.random()) * (self.at_first if len(self.specs) <= 12 else 1)
        self.search.end_step(seconds if len(self.specs) > 1 else None, 0.3 * seconds)

    def until_decided(self, limit=50):
        for _ in range(limit):
            self.step()
            if self.search.phase is Phase.KEEP:
                return self.search.spec
        raise AssertionError(f"nothing was decided in {limit} steps")

    def specs_until_decided(self):
        self.until_decided()
        return self.specs


def test_it_begins_by_watching_plain_steps_and_asks_once():
    played = Played({PLAIN: 1.0, FAST: 0.5}, {FAST: 0.6})
    assert played.search.phase is Phase.WATCH and played.search.spec == PLAIN
    assert played.until_decided() == FAST
    assert played.asked == 1
    assert played.specs[:8] == [PLAIN] * 8


def test_the_sample_is_wanted_in_the_last_step_that_is_watched():
    played = Played({PLAIN: 1.0, FAST: 0.5}, {FAST: 0.6})
    wanted = []
    while played.search.phase is Phase.WATCH:
        wanted.append(played.search.wants_sample)
        played.step()
    assert wanted == [False] * (len(wanted) - 1) + [True]


def test_it_keeps_plain_where_nothing_is_faster():
    played = Played({PLAIN: 1.0, FAST: 1.05}, {FAST: 0.5})  # whatever the model says
    assert played.until_decided() == PLAIN
    assert FAST in played.specs  # it was tried


def test_it_tries_nothing_that_the_model_does_not_like():
    played = Played({PLAIN: 1.0, SLOW: 0.1}, {SLOW: 1.2})
    assert played.until_decided() == PLAIN
    assert SLOW not in played.specs
    assert len(played.specs) == 8


def test_it_tries_nothing_that_is_too_lossy():
    played = Played({PLAIN: 1.0, FAST: 0.7, LOSSY: 0.1}, {FAST: 0.7, LOSSY: 0.1})
    played.prospects = [dataclasses.replace(one, is_allowed=one.spec != LOSSY) for one in played.prospects]
    assert played.until_decided() == FAST and LOSSY not in played.specs


def test_it_watches_on_until_there_are_gradients_that_tell_something():
    played = Played({PLAIN: 1.0, FAST: 0.5}, {FAST: 0.6})
    later, played.prospects = played.prospects, None
    for _ in range(20):
        played.step()
    assert set(played.specs) == {PLAIN} and played.search.wants_sample and played.asked == 13
    played.prospects = later
    assert played.until_decided() == FAST


def test_steps_that_failed_are_not_fast():
    """Of which nobody knows how long they took."""
    played = Played({PLAIN: 1.0, FAST: 1.2, SLOW: 0.5}, {FAST: 0.5, SLOW: 0.6})
    while played.search.phase is not Phase.KEEP:
        if played.search.spec == FAST:
            played.specs.append(FAST)
            played.search.end_step(None, 0.0)
        else:
            played.step()
    assert played.search.spec == SLOW and FAST in played.specs and len(played.specs) <= 48


def test_no_prospects_mean_plain():
    assert Played({PLAIN: 1.0}, {}).until_decided() == PLAIN


def test_it_takes_the_fastest_of_those_tried_and_not_the_best_liked():
    assert Played({PLAIN: 1.0, SLOW: 0.8, FAST: 0.7}, {SLOW: 0.5, FAST: 0.6}).until_decided() == FAST


def test_it_tries_three_at_most_of_which_two_go_on():
    played = Played({PLAIN: 1.0, SLOW: 0.8, FAST: 0.7, "third": 0.75, LOSSY: 0.1}, {SLOW: 0.5, FAST: 0.6, "third": 0.7, LOSSY: 0.8})
    assert played.until_decided() == FAST and LOSSY not in played.specs
    assert [played.specs.count(spec) for spec in (SLOW, "third", FAST)] == [3, 11, 11]


def test_what_wins_next_to_nothing_is_not_worth_an_error():
    assert Played({PLAIN: 1.0, FAST: 0.96}, {FAST: 0.9}).until_decided() == PLAIN


def test_slow_plain_steps_are_tried_once():
    played = Played({PLAIN: 10.0, FAST: 1.0}, {FAST: 1.0})
    assert played.until_decided() == FAST
    assert played.specs.count(PLAIN) == 8


def test_a_turn_of_plain_is_beside_the_others_before_it_is_given_up():
    played = Played({PLAIN: 1.0, FAST: 0.7}, {FAST: 0.7})
    played.until_decided()
    assert PLAIN in played.specs[8:]


@pytest.mark.parametrize("seed", range(20))
def test_noise_does_not_mislead_it_much(seed):
    """A fifth of noise, and a fifth less time."""
    played = Played({PLAIN: 1.0, FAST: 0.8, SLOW: 1.2}, {FAST: 0.9, SLOW: 0.9}, noise=0.2, seed=seed)
    assert played.until_decided() != SLOW


def test_what_is_no_faster_seldom_wins_by_noise():
    alike = {FAST: 1.0, SLOW: 1.0, LOSSY: 1.0}
    plays = [Played({PLAIN: 1.0, **alike}, dict.fromkeys(alike, 0.9), noise=0.2, seed=seed) for seed in range(400)]
    assert [played.until_decided() for played in plays].count(PLAIN) >= 340


def test_what_is_slower_hardly_ever_wins():
    """Where one step may take twice as long as the next, as where four workers share two cores."""
    for slower, most in ((1.1, 20), (1.05, 40)):
        alike = {FAST: slower, SLOW: slower, LOSSY: slower}
        plays = [Played({PLAIN: 1.0, **alike}, dict.fromkeys(alike, 0.9), noise=0.6, seed=seed, at_first=1.3) for seed in range(400)]
        assert [played.until_decided() for played in plays].count(PLAIN) >= 400 - most


def test_first_steps_take_longer_which_is_not_held_against_plain():
    plays = [Played({PLAIN: 1.0, FAST: 1.0}, {FAST: 0.9}, noise=0.3, seed=seed, at_first=1.5) for seed in range(400)]
    assert [played.until_decided() for played in plays].count(PLAIN) >= 360


def test_what_wins_by_little_goes_another_round_against_plain_alone():
    played = Played({PLAIN: 1.0, FAST: 0.9, SLOW: 0.95, LOSSY: 1.0}, {FAST: 0.9, SLOW: 0.9, LOSSY: 0.9})
    assert played.until_decided() == FAST and len(played.specs) == 49  # fifty, where there are embeddings
    assert played.specs[-8:] == [PLAIN] * 4 + [FAST] * 4
    assert len(Played({PLAIN: 1.0, FAST: 0.8}, {FAST: 0.9}).specs_until_decided()) < 40


@pytest.mark.parametrize("before, after", [({PLAIN: 1.0, FAST: 0.5}, {PLAIN: 0.4, FAST: 0.7}), ({PLAIN: 1.0, FAST: 1.2}, {PLAIN: 5.0, FAST: 1.3})])
def test_it_looks_again_when_steps_change_and_not_before(before, after):
    played = Played(before, {FAST: 0.5})
    first = played.until_decided()
    for _ in range(300):
        played.step()
    assert played.search.searches == 1 and set(played.specs[-300:]) == {first}
    played.seconds_of = after
    for _ in range(100):
        played.step()
    assert played.search.searches == 2
    assert played.search.phase is Phase.KEEP and played.search.spec == min(after, key=after.get) != first


@pytest.mark.parametrize("first, later, searches", [(0.9, 0.4, 2), (0.9, 0.5, 1), (0.9, 3.0, 1), (3.0, 0.6, 1), (3.0, 0.4, 2), (0.0, 0.0, 1)])
def test_it_looks_again_when_messages_get_faster(first, later, searches):
    """Which compressed steps may not tell; of slower ones they do."""
    played = Played({PLAIN: 1.0, FAST: 0.5}, {FAST: 0.5})
    played.message = first
    played.until_decided()
    for _ in range(60):
        played.step()
    assert played.probed == 3
    played.message = later
    for _ in range(110):
        played.step()
    assert played.search.searches == searches and played.search.phase is Phase.KEEP


@pytest.mark.parametrize("message", [1.0, 0.1])
def test_a_search_is_over_within_a_hundred_steps_of_a_change(message):
    """Where rounds are as many as they can be, and steps take twice as long, or only a message tells."""
    for offset in range(30):
        played = Played({PLAIN: 1.0, FAST: 0.9, SLOW: 0.95, LOSSY: 1.0}, {FAST: 0.9, SLOW: 0.9, LOSSY: 0.9})
        played.message = 1.0
        for _ in range(120 + offset):
            played.step()
        assert played.search.searches == 1
        played.message = message
        if message == 1.0:
            played.seconds_of = {spec: 2 * seconds for spec, seconds in played.seconds_of.items()}
        for _ in range(100):
            played.step()
            if played.search.searches == 2 and played.search.phase is Phase.KEEP:
                break
        assert played.search.searches == 2 and played.search.phase is Phase.KEEP


def test_where_plain_is_kept_there_are_no_messages():
    played = Played({PLAIN: 1.0, FAST: 1.2}, {FAST: 0.5})
    for _ in range(200):
        played.step()
    assert played.search.spec == PLAIN and played.probed == 0


def test_one_bad_window_is_forgiven():
    played = Played({PLAIN: 1.0, FAST: 0.5}, {FAST: 0.5})
    played.until_decided()
    usual = played.seconds_of
    for _ in range(45):
        played.step()
    played.seconds_of = {PLAIN: 9.0, FAST: 9.0}
    for _ in range(15):
        played.step()
    played.seconds_of = usual
    for _ in range(100):
        played.step()
    assert played.search.searches == 1


def test_workers_compare_seldom_where_steps_are_short():
    played = Played({PLAIN: 0.001, FAST: 0.0005}, {FAST: 0.0005})
    played.until_decided()
    for _ in range(100):
        played.step()
    before = played.agreements
    for _ in range(10_000):
        played.step()
    assert played.agreements - before <= 10_000 / 2000


def test_a_step_without_a_beginning_is_not_counted():
    """As after a backward pass that failed."""
    played = Played({PLAIN: 1.0, FAST: 0.5}, {FAST: 0.6})
    for _ in range(100):
        played.search.end_step(None, 0.0)
    assert played.search.phase is Phase.KEEP


def test_what_was_decided_earlier_is_kept():
    played = Played({PLAIN: 1.0, FAST: 0.5}, {})
    played.search.keep(FAST)
    for _ in range(200):
        played.step()
    assert set(played.specs) == {FAST} and played.asked == 0
