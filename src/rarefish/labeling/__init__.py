"""The labeling server and its pages: label in the browser, alone or with several people. It never imports torch."""
