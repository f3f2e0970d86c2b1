"""Pictures read in grey, on white, on dark pages and under anybody's matplotlib settings."""

import io

import matplotlib
from PIL import Image

from astkit.names import REGISTRIES
from astkit.widgets import plots, style

DARK = {
    **dict.fromkeys(("figure.facecolor", "savefig.facecolor", "axes.facecolor"), "black"),
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor"), "white"),
    **dict.fromkeys(("xtick.color", "ytick.color"), "white"),
    "grid.color": "yellow",
    "lines.linewidth": 9,
    "axes.grid": False,
    "legend.frameon": True,
    "font.size": 20,
}
RATES = [0.1] * 20 + [0.2] * 20
STEPS = [
    {"step": step, "threshold": 2.0, "measured_rate": 0.1, "rate": rate}
    for step, rate in enumerate(RATES)
]


def test_every_policy_has_a_look_of_its_own():
    policies = {*REGISTRIES["policy"], "dense", "random", "oracle", "aim"}
    assert policies <= set(style.LOOKS)
    assert len({style.LOOKS[name] for name in policies}) == len(policies)


def test_lines_of_one_figure_differ_in_colour():
    names = ["dense", "gate(0.1)", "gate(0.4)", "cached_loss", "auto", "auto-encoder"]
    looks = style.lines(names)
    assert len({look["color"] for look in looks.values()}) == len(names)
    assert looks["gate(0.1)"] == style.line("gate")
    assert style.lines(names) == looks


def test_settings_of_others_change_nothing_and_stay():
    plain = plots.learning_curves(STEPS, []).png()
    with matplotlib.rc_context(DARK):
        dark = plots.learning_curves(STEPS, []).png()
        assert matplotlib.rcParams["text.color"] == "white"
    assert plain == dark
    corner = Image.open(io.BytesIO(plain)).convert("RGBA").getpixel((0, 0))
    assert corner == (255, 255, 255, 255)


def test_a_picture_on_a_page_has_one_width_and_a_text():
    picture = style.picture(2)
    picture.headline("It falls")
    picture.axes[0].set(title="loss", xlabel="step", ylabel="mean")
    png, page = picture._repr_png_()
    assert abs(Image.open(io.BytesIO(png)).width - 2 * page["width"]) <= 1
    assert page == {"width": 730, "alt": "It falls; loss; mean against step"}
    picture.alt = "a loss\n that falls"
    assert picture.described() == "a loss that falls"


def test_a_film_plays_once_and_is_its_last_picture_for_those_who_want_no_motion():
    def drawn(height):
        shown = style.picture(width=3, height=2)
        shown.axes[0].bar([0], [height])
        shown.axes[0].set_ylim(0, 3)
        shown.headline(f"{height} & more")
        return shown

    film = style.Film((drawn(height) for height in (1, 2, 3)), fps=4)
    with Image.open(io.BytesIO(film.png)) as frames, Image.open(io.BytesIO(film.still)) as still:
        assert (frames.n_frames, frames.info["loop"], frames.info["duration"]) == (3, 1, 250)
        frames.seek(2)
        assert frames.convert("RGB").tobytes() == still.convert("RGB").tobytes()
    bundle, about = film._repr_mimebundle_()
    assert about["image/png"] == {"width": 288, "alt": "3 & more"}
    html = bundle["text/html"]
    assert html.index("prefers-reduced-motion") < html.index(bundle["image/png"])
    assert html.index(bundle["image/png"]) < html.index("<img")
    assert 'alt="3 &amp; more"' in html
