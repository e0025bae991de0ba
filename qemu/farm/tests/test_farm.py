"""The farm's own command line."""

import os
import subprocess
import sys
import tempfile
import unittest

import place


class Summary(unittest.TestCase):
    def test_what_the_summary_of_dev_gets(self) -> None:
        code = "import runpy, types; farm = runpy.run_path('qemu/farm/__main__.py', run_name='farm'); " \
               "farm['report']([(types.SimpleNamespace(name='flash'), 'qemu-amd64')], [None])"
        with tempfile.NamedTemporaryFile("r") as file:
            own = {**os.environ, "COPAL_RESULTS": file.name, "PYTHONPATH": "qemu/farm"}
            subprocess.run([sys.executable, "-B", "-c", code], cwd=place.TOP, env=own, check=True, timeout=60)
            self.assertEqual(file.read(), "failed\tflash qemu-amd64\tno time was left for it\n")


if __name__ == "__main__":
    unittest.main()
