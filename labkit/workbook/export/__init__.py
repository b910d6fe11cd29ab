"""Results to show: slides and pages that work with no network, the site, the scoreboard."""
