//! What stands behind the help of verbs: examples and exit codes.

pub(super) const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  failed, or the comparison found a difference; or the job was done,
     and only what came after it failed
  2  wrong arguments
  3  refused: nothing was written
  4  failed after writing had begun: the target holds no partition table,
     or the message says that one may be left
  5  busy: another program holds the target; nothing was written";

pub(super) const MAIN_HELP: &str = "\
Called by one of the names of `copal --list` (through a link, or as
`copal NAME ...`), the program stands in for the script of that name: exit
codes are 0, 1 and, for wrong arguments, 2.

Environment:
  COPAL_LOG  error, warn, info or debug: the level of the log on stderr
             [default: warn]
  NO_COLOR   when set: lines instead of a progress bar";

pub(super) const FLASH_EXAMPLES: &str = "\
Examples:
  copal flash --plan              show everything that an installation by the
                                  board's configuration would write
  copal flash --no-power-off      install: image, bootloaders, boot partition,
                                  the board's own program
  copal flash --image os.img.zst --target /dev/mmcblk0
                                  write the image, and nothing else
  copal flash --image os.img.gz --target disk.img
                                  make a disk image: no root needed";

pub(super) const UPDATE_EXAMPLES: &str = "\
Examples:
  copal update -i registry/os:6.1.2   install the release, and select it
  copal update -f os.docker -r        the same from an archive, and reboot
                                      when applications allow it

Exit codes:
  0  done: the other slot boots next (with --no-hooks: it is installed)
  1  a hook failed, and the message says what boots next; or what came after
     the update did: no reboot, no output
  2  wrong arguments
  3  refused: nothing was written
  4  failed after writing had begun: the message says what boots next
  5  busy: another update is under way";

pub(super) const VERIFY_EXAMPLES: &str = "\
Examples:
  copal verify --image os.img.zst --target /dev/mmcblk0
  copal verify --image os.img --target disk.img --json";

pub(super) const DIGEST_EXAMPLES: &str = "\
Examples:
  copal digest os.img.zst
  copal digest os.img --json";

pub(super) const STATUS_EXAMPLES: &str = "\
Examples:
  copal status
  copal status --log
  copal status --json | tail -n 1 | jq .status.phase";

pub(super) const DOCTOR_EXAMPLES: &str = "\
Examples:
  copal doctor
  copal doctor --json";

pub(super) const DAEMON_EXAMPLES: &str = "\
Examples:
  busctl introspect io.balena.Copal1 /io/balena/Copal1
  busctl call io.balena.Copal1 /io/balena/Copal1 io.balena.Copal1.Manager \\
    Update 'sa{sv}' registry/os:6.1.2 0";
