"""The corpus of `kzoo demo`: dates as people write them, and in ISO 8601.

Made in code, so that the demo needs no file and no network. What a model must learn is
small and can be seen in its attention: the year's digits are copied, the day's digits
are copied from where the language puts them, and the month is looked up by its name.
"""

import datetime
import random

from kzoo.arguments import check_choice, check_count
from kzoo.data.splits import hash_fraction

FIRST_DATE = datetime.date(1900, 1, 1)
LAST_DATE = datetime.date(2099, 12, 31)

# {d} day, {dd} two digits, {o} ordinal, {m} month, {M} its short form, {mm} two digits,
# {y} year, {w} weekday. Slashed forms are not here: they depend on the day (see
# `write_date`).
_LANGUAGES = {
    "en": dict(
        months="January February March April May June July August September October "
        "November December",
        short="Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec",
        weekdays="Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
        forms=(
            "{d} {m} {y}",
            "{m} {d}, {y}",
            "{m} {o}, {y}",
            "the {o} of {m} {y}",
            "{w}, {d} {m} {y}",
            "{w}, {m} {d}, {y}",
            "{M} {d}, {y}",
            "{d} {M} {y}",
        ),
    ),
    "de": dict(
        months="Januar Februar März April Mai Juni Juli August September Oktober "
        "November Dezember",
        short="Jan. Feb. März Apr. Mai Juni Juli Aug. Sept. Okt. Nov. Dez.",
        weekdays="Montag Dienstag Mittwoch Donnerstag Freitag Samstag Sonntag",
        forms=(
            "{d}. {m} {y}",
            "am {d}. {m} {y}",
            "{w}, {d}. {m} {y}",
            "{w}, den {d}. {m} {y}",
            "{d}. {M} {y}",
            # A point after the number of the month is German: the day comes first.
            "{dd}.{mm}.{y}",
        ),
    ),
    "fr": dict(
        months="janvier février mars avril mai juin juillet août septembre octobre "
        "novembre décembre",
        short="janv. févr. mars avr. mai juin juil. août sept. oct. nov. déc.",
        weekdays="lundi mardi mercredi jeudi vendredi samedi dimanche",
        forms=(
            "{o} {m} {y}",
            "le {o} {m} {y}",
            "{w} {o} {m} {y}",
            "le {w} {o} {m} {y}",
            "{o} {M} {y}",
        ),
    ),
    "es": dict(
        months="enero febrero marzo abril mayo junio julio agosto septiembre octubre "
        "noviembre diciembre",
        short="ene feb mar abr may jun jul ago sept oct nov dic",
        weekdays="lunes martes miércoles jueves viernes sábado domingo",
        forms=(
            "{d} de {m} de {y}",
            "el {d} de {m} de {y}",
            "{w}, {d} de {m} de {y}",
            "{d} {M} {y}",
        ),
    ),
    "it": dict(
        months="gennaio febbraio marzo aprile maggio giugno luglio agosto settembre "
        "ottobre novembre dicembre",
        short="gen feb mar apr mag giu lug ago set ott nov dic",
        weekdays="lunedì martedì mercoledì giovedì venerdì sabato domenica",
        forms=(
            "{o} {m} {y}",
            "il {o} {m} {y}",
            "{w} {o} {m} {y}",
            "{d} {M} {y}",
        ),
    ),
}

LANGUAGES = tuple(_LANGUAGES)

# Day of the month and number of the month, in either order: only for days that cannot
# be months.
_SLASHED = ("{d}/{mm}/{y}", "{mm}/{d}/{y}")


def date_pairs(count, *, seed=0, split="train"):
    """Pairs of a written date and the same date in ISO 8601.

    A date belongs to one split for good (80 % train, 10 % validation, 10 % test, by a
    hash of the date), so that a model is never asked for a date that it was trained
    on, however that was written. A split has distinct dates first and begins again
    with other forms when `count` exceeds them.

    Args:
        count: number of pairs.
        seed: of the order and the forms.
        split: `"train"`, `"validation"` or `"test"`.

    Returns:
        list of (written, iso), such as ("le 3 mars 1998", "1998-03-03"); years 1900
        to 2099.

    Raises:
        ValueError: an unknown split, or a count that is no integer from 0.
    """
    if split not in ("train", "validation", "test"):
        raise ValueError(
            f"split must be 'train', 'validation' or 'test'. Received: {split!r}."
        )
    check_count("count", count, 0)
    days = (LAST_DATE - FIRST_DATE).days + 1
    dates = [FIRST_DATE + datetime.timedelta(days=day) for day in range(days)]
    dates = [date for date in dates if _split_of(date) == split]
    # Of `random.Random` only `random()` is promised to give the same numbers in every
    # version of Python.
    draw = random.Random(f"{split} {seed}").random
    pairs = []
    while len(pairs) < count:
        order = sorted((draw(), date) for date in dates)
        for _, date in order[: count - len(pairs)]:
            language = _choose(LANGUAGES, draw)
            pairs.append((write_date(date, language, draw), date.isoformat()))
    return pairs


def write_date(date, language, draw):
    """Writes a date in one of a language's forms.

    Args:
        date: a `datetime.date`.
        language: one of `LANGUAGES`.
        draw: a function without arguments that gives numbers in [0, 1), such as
            `random.Random(0).random`; it chooses the form.

    Raises:
        ValueError: an unknown language.
    """
    check_choice("language", language, _LANGUAGES)
    words = _LANGUAGES[language]
    forms = words["forms"]
    if date.day > 12 and language != "de":
        forms = (*forms, _SLASHED[language == "en"])
    return _choose(forms, draw).format(
        d=date.day,
        dd=f"{date.day:02}",
        o=_ordinal(date.day, language),
        m=words["months"].split()[date.month - 1],
        M=words["short"].split()[date.month - 1],
        mm=f"{date.month:02}",
        y=date.year,
        w=words["weekdays"].split()[date.weekday()],
    )


def _ordinal(day, language):
    if language == "en":
        last = 0 if 11 <= day <= 13 else day % 10
        return str(day) + {1: "st", 2: "nd", 3: "rd"}.get(last, "th")
    if day == 1:  # French and Italian count the first only
        return {"fr": "1er", "it": "1º"}.get(language, "1")
    return str(day)


def _split_of(date):
    place = hash_fraction(f"date {date.isoformat()}")
    return "train" if place < 0.8 else "validation" if place < 0.9 else "test"


def _choose(options, draw):
    return options[int(draw() * len(options))]
