"""Tests of the farm itself: `python3 -m unittest discover -s qemu/farm/tests -t qemu/farm`."""
