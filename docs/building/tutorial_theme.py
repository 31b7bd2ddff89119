"""The first cell of a tutorial while the site is built, which readers do not see: the charts of `deep5 report`."""

import altair

from deep5.core.charts import PALETTE
from deep5.results.report.theme import themed

# Before the theme is enabled, which is a part of every chart.
config = themed(altair.Chart(altair.Data(values=[])).mark_point())["config"]
config["range"] = {"category": list(PALETTE)}


@altair.theme.register("site", enable=True)
def site():
    """The configuration of every chart."""
    return {"config": config}
