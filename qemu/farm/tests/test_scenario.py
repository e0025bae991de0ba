"""What a scenario may say, and what is refused."""

import unittest

import board
import place
import runner
import scenario
from place import FarmError

GOOD = """# An update that fails,
# and what is left of it.
boards: amd
limit: 60

# Not a part of the title.
from running
run hostapp-update -f /releases/good.tar -r
reboots
on amd: boots 5.1.0 in B
within 30 s expect no file /mnt/state/rollback-health-breadcrumb
expect bootloader root running, upgrade_available 0, bootcount 0
expect output of copal status contains "healthy: \\"all\\" is well"
cut power when console says "Reached", up to 3.5 s later
"""


def parse(text: str) -> scenario.Scenario:
    return scenario.parse("name", text, "name.scenario", ["amd", "arm"])


class Parser(unittest.TestCase):
    def refused(self, text: str, *words: str) -> None:
        with self.assertRaises(FarmError) as caught:
            parse(text)
        for word in words:
            self.assertIn(word, str(caught.exception))

    def test_a_whole_file(self) -> None:
        found = parse(GOOD)
        self.assertEqual(found.title, "An update that fails, and what is left of it.")
        self.assertEqual(found.boards, ("amd",))
        self.assertEqual(found.limit, 60)
        self.assertEqual([step.method for step in found.steps][:3], ["from_state", "run_command", "reboots"])
        boots, file, selected, output, cut = found.steps[3:]
        self.assertEqual((boots.board, boots.arguments), ("amd", ("5.1.0", "B", None, None, None)))
        self.assertEqual((file.within, file.arguments), (30, ("/mnt/state/rollback-health-breadcrumb",)))
        self.assertEqual(scenario.selection(selected.arguments).root, "running")
        self.assertEqual(output.arguments[0], "copal status")
        self.assertEqual(scenario.unquoted(output.arguments[2] or ""), 'healthy: "all" is well')
        self.assertEqual(cut.arguments, ("Reached", None, "3.5"))
        self.assertEqual([step.number for step in found.of("arm")], [7, 8, 9, 11, 12, 13, 14])

    def test_how_long_it_takes(self) -> None:
        found = parse("# t\nfrom running\nrun hostapp-update -f /a.tar\nreboots\non arm: reboots\nboots 5.1.0 in B\n")
        self.assertEqual((found.work("amd"), found.work("arm")), (4, 5))

    def test_two_possible_boots(self) -> None:
        found = parse("# t\nfrom flashed\nboots 5.0.0 in A or 5.1.0+rev2 in B after 2 more restarts\n")
        self.assertEqual(found.steps[1].arguments, ("5.0.0", "A", "5.1.0+rev2", "B", "2"))

    def test_unknown_lines_name_their_place(self) -> None:
        self.refused("# t\nfrom running\nexpect file /a\nexpects file /b\n", "name.scenario:4", "expects file /b")
        self.refused("# t\nfrom running\nboots 5.0.0 in C\n", "name.scenario:3")
        self.refused("# t\nfrom running\nexpect file relative\n", "name.scenario:3")
        self.refused('# t\nfrom running\nexpect console contains "no end\n', "name.scenario:3")
        self.refused("# t\nfrom running\nexpect bootloader root A, upgrade_available 2, bootcount 0\n", "name.scenario:3")

    def test_headers_and_states_are_checked(self) -> None:
        self.refused("# t\nboards: amd, mips\nfrom running\nexpect file /a\n", "name.scenario:2", "mips")
        self.refused("# t\ndisk: floppy\nfrom running\nexpect file /a\n", "name.scenario:2", "floppy")
        self.refused("# t\nlimit: soon\nfrom running\nexpect file /a\n", "name.scenario:2", "soon")
        self.refused("# t\nfrom running\nlimit: 5\nexpect file /a\n", "name.scenario:3")
        self.refused("# t\nfrom nowhere\nexpect file /a\n", "nowhere")
        self.refused("# t\nfrom running\non mips: expect file /a\n", "name.scenario:3", "mips")

    def test_a_scenario_begins_with_a_state_and_can_fail(self) -> None:
        self.refused("# t\nexpect file /a\n", "first step")
        self.refused("# t\nfrom running\nfrom running\nexpect file /a\n", "name.scenario:3", "first step")
        self.refused("# t\nfrom running\nreboot\nreboots\n", "cannot fail")
        self.refused("from running\nexpect file /a\n", "title")
        self.refused("# t\n", "no steps")

    def test_every_step_can_be_done(self) -> None:
        runner.checked()
        for words, _, meaning in scenario.STEPS:
            self.assertTrue(meaning, words)

    def test_each_word_is_known(self) -> None:
        for words, method, _ in scenario.STEPS:
            self.assertIsNotNone(scenario.pattern(words), method)

    def test_the_scenarios_that_are_there(self) -> None:
        found = scenario.all_in(place.SCENARIOS, board.names())
        self.assertTrue(found)


if __name__ == "__main__":
    unittest.main()
