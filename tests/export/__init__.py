"""Export: slides, pages, the site and the scoreboard."""
