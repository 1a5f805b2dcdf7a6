"""Two images with boxes, one of which has none, for tests of the formats."""

from rarefish.exchange.boxes import Box, BoxedImage

NAMES = ('"a" & <b>', "owl")
IMAGES = [
    BoxedImage(
        "night & day/1.png",
        200,
        100,
        (Box(20, 10, 60, 30, "owl", 0.75), Box(-5, 90, 200, 120, '"a" & <b>')),  # the second is cut at the edges
    ),
    BoxedImage("2.png", 50, 50),
]
