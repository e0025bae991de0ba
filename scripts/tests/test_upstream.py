"""What has changed in a clone of meta-balena since the releases that copal was compared with."""

import contextlib
import io
import subprocess
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import upstream

HEALTH = f"{upstream.COMMON}/recipes-core/balena-rollback/files/rollback-health"


class Upstream(unittest.TestCase):
    """A clone with a recipe for each append, and two releases."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.top = Path(folder.name)
        self.git("init", "-q")
        for recipe in [recipe for of in upstream.recipes().values() for recipe in of]:
            self.commit(recipe, "a recipe")
        self.commit(HEALTH, "first", upstream.FIRST)
        self.commit(HEALTH, "second", "v9.0.0")
        written = mock.patch.object(upstream, "LIST", self.top / "list.inc")
        written.start()
        self.addCleanup(written.stop)
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(upstream.main(["--write", str(self.top)]), 0)

    def git(self, *words: str) -> None:
        """Runs git in the clone."""
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", "-C", str(self.top), *who, *words], check=True, capture_output=True)

    def commit(self, path: str, text: str, tag: str = "") -> None:
        """A commit that writes a file; without a text it removes it."""
        file = self.top / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if text:
            file.write_text(text)
            self.git("add", path)
        else:
            self.git("rm", "-q", path)
        self.git("commit", "-q", "-m", f"{text or 'remove'} {file.name}")
        if tag:
            self.git("tag", tag)

    def said(self) -> tuple[int, str]:
        """The status, and what is printed."""
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            return upstream.main([str(self.top)]), out.getvalue()

    def test_the_list_has_each_version_of_the_releases(self) -> None:
        oldest, newest, digests = upstream.known()
        self.assertEqual((oldest, newest), (upstream.FIRST, "v9.0.0"))
        self.assertEqual({name: len(of) for name, of in digests.items()}, {"rollback-health": 2})
        self.assertEqual(self.said()[0], 0)

    def test_what_copal_has_to_follow_is_in_capitals_with_its_commits(self) -> None:
        self.commit(HEALTH, "third")
        self.commit(f"{upstream.COMMON}/recipes-core/systemd/systemd/vacuum.conf", "not near to copal")
        status, said = self.said()
        self.assertEqual(status, 1)
        self.assertIn(f"CHANGED   {HEALTH}: copal replaces it", said)
        self.assertIn("third rollback-health", said)
        self.assertNotIn("vacuum", said)

    def test_a_version_of_before_is_nothing_new(self) -> None:
        self.commit(HEALTH, "first")
        status, said = self.said()
        self.assertEqual(status, 0)
        self.assertIn(f"changed   {HEALTH}", said)

    def test_new_hooks_and_files_and_recipes_that_are_gone_are_listed(self) -> None:
        hook = f"{upstream.COMMON}/recipes-support/hostapp-update-hooks/files/90-new"
        self.commit(hook, "a hook")
        self.assertEqual(self.said()[0], 0)
        self.assertIn(f"new       {hook}", self.said()[1])
        self.commit(HEALTH, "")
        self.assertIn(f"REMOVED   {HEALTH}", self.said()[1])
        self.git("mv", *(f"{upstream.COMMON}/recipes-containers/hostapp-update/{name}.bb" for name in ("hostapp-update", "host-update")))
        self.git("commit", "-q", "-m", "rename")
        status, said = self.said()
        self.assertEqual(status, 1)
        self.assertIn(f"GONE      {upstream.COMMON}/recipes-containers/hostapp-update/hostapp-update.bb", said)

    def test_what_is_no_clone_is_said(self) -> None:
        with tempfile.TemporaryDirectory() as empty, contextlib.redirect_stderr(io.StringIO()) as said:
            self.assertEqual(upstream.main([empty]), 2)
        self.assertIn("upstream: git", said.getvalue())


if __name__ == "__main__":
    unittest.main()
