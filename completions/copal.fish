# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_copal_global_optspecs
    string join \n list v/verbose h/help V/version
end

function __fish_copal_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_copal_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_copal_using_subcommand
    set -l cmd (__fish_copal_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c copal -n "__fish_copal_needs_command" -l list -d 'List the legacy names, one a line'
complete -c copal -n "__fish_copal_needs_command" -s v -l verbose -d 'Tell more in the log; twice for debugging'
complete -c copal -n "__fish_copal_needs_command" -s h -l help -d 'Print help'
complete -c copal -n "__fish_copal_needs_command" -s V -l version -d 'Print version'
complete -c copal -n "__fish_copal_needs_command" -f -a "flash" -d 'Write an OS image to a disk, and prove that it is there'
complete -c copal -n "__fish_copal_needs_command" -f -a "update" -d 'Install a release of the host OS in the other slot, and select it'
complete -c copal -n "__fish_copal_needs_command" -f -a "verify" -d 'Compare a disk with an image, without writing'
complete -c copal -n "__fish_copal_needs_command" -f -a "digest" -d 'Print the chunk digest of an image, as receipts have it'
complete -c copal -n "__fish_copal_needs_command" -f -a "bootloader" -d 'Write a bootloader outside file systems, or show where one can go'
complete -c copal -n "__fish_copal_needs_command" -f -a "hooks" -d 'Run the hooks of host OS updates, or show which would run'
complete -c copal -n "__fish_copal_needs_command" -f -a "rollback" -d 'Follow the trial of an update, or end it'
complete -c copal -n "__fish_copal_needs_command" -f -a "status" -d 'Show where the device stands, and what the last update came to'
complete -c copal -n "__fish_copal_needs_command" -f -a "doctor" -d 'Look for what would stop a flash, an update or a rollback'
complete -c copal -n "__fish_copal_needs_command" -f -a "daemon" -d 'Serve updates on the system bus, as io.balena.Copal1'
complete -c copal -n "__fish_copal_needs_command" -f -a "completions" -d 'Print a completion script for a shell'
complete -c copal -n "__fish_copal_needs_command" -f -a "man" -d 'Print a manual page, as a release has it'
complete -c copal -n "__fish_copal_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c copal -n "__fish_copal_using_subcommand flash" -l conf -d 'The board\'s configuration [default: /etc/resin-init-flasher.conf]' -r -F
complete -c copal -n "__fish_copal_using_subcommand flash" -l image -d 'The image: raw, gzip, xz, zstd or bzip2 [default: the configuration\'s]' -r -F
complete -c copal -n "__fish_copal_using_subcommand flash" -l target -d 'A whole disk, or a plain file [default: the configuration\'s patterns]' -r -F
complete -c copal -n "__fish_copal_using_subcommand flash" -l sha256 -d 'Compute the uncompressed image\'s SHA-256; with HEX, refuse any other' -r
complete -c copal -n "__fish_copal_using_subcommand flash" -l receipt -d 'Put the receipt into FILE, and only a summary on stdout' -r -F
complete -c copal -n "__fish_copal_using_subcommand flash" -l led -d 'An LED that shows progress: the file that takes 1 and 0' -r -F
complete -c copal -n "__fish_copal_using_subcommand flash" -l root -d 'Folder that stands for / (for tests)' -r -F
complete -c copal -n "__fish_copal_using_subcommand flash" -l plan -d 'Check everything and show what would be written; write nothing'
complete -c copal -n "__fish_copal_using_subcommand flash" -l json -d 'Progress and result as JSON lines on stdout'
complete -c copal -n "__fish_copal_using_subcommand flash" -l force-raw -d 'Accept an image without a valid partition table or boot partition'
complete -c copal -n "__fish_copal_using_subcommand flash" -l single-pass -d 'Do not check a compressed image first: faster, but damage shows late'
complete -c copal -n "__fish_copal_using_subcommand flash" -l image-only -d 'Write and verify the image only, whatever the configuration asks for'
complete -c copal -n "__fish_copal_using_subcommand flash" -l no-power-off -d 'Stay on when an installation is done; always so with the image only'
complete -c copal -n "__fish_copal_using_subcommand flash" -s v -l verbose -d 'Tell more in the log; twice for debugging'
complete -c copal -n "__fish_copal_using_subcommand flash" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c copal -n "__fish_copal_using_subcommand update" -s f -l file -d 'An image archive, as `docker save` writes it' -r -F
complete -c copal -n "__fish_copal_using_subcommand update" -s i -l image -d 'An image in a registry; without tag or digest, the tag `latest`' -r
complete -c copal -n "__fish_copal_using_subcommand update" -s r -l reboot -d 'Reboot afterwards, as soon as applications allow it'
complete -c copal -n "__fish_copal_using_subcommand update" -s n -l no-hooks -d 'Run no hooks of the release: it is installed, and not selected'
complete -c copal -n "__fish_copal_using_subcommand update" -s x -l no-recovery -d 'When a hook fails, do not run those of the running system'
complete -c copal -n "__fish_copal_using_subcommand update" -l force -d 'Update although the running system is on trial or was fallen back to'
complete -c copal -n "__fish_copal_using_subcommand update" -l no-daemon -d 'Run in this process, even where a daemon could run the update'
complete -c copal -n "__fish_copal_using_subcommand update" -l json -d 'Progress and result as JSON lines on stdout'
complete -c copal -n "__fish_copal_using_subcommand update" -s v -l verbose -d 'Tell more in the log; twice for debugging'
complete -c copal -n "__fish_copal_using_subcommand update" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c copal -n "__fish_copal_using_subcommand verify" -l image -d 'The image: raw, gzip, xz, zstd or bzip2' -r -F
complete -c copal -n "__fish_copal_using_subcommand verify" -l target -d 'The disk or plain file to read' -r -F
complete -c copal -n "__fish_copal_using_subcommand verify" -l json -d 'Progress and result as JSON lines on stdout'
complete -c copal -n "__fish_copal_using_subcommand verify" -s v -l verbose -d 'Tell more in the log; twice for debugging'
complete -c copal -n "__fish_copal_using_subcommand verify" -s h -l help -d 'Print help'
complete -c copal -n "__fish_copal_using_subcommand digest" -l json -d 'Progress and result as JSON lines on stdout'
complete -c copal -n "__fish_copal_using_subcommand digest" -s v -l verbose -d 'Tell more in the log; twice for debugging'
complete -c copal -n "__fish_copal_using_subcommand digest" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c copal -n "__fish_copal_using_subcommand bootloader; and not __fish_seen_subcommand_from show write protect help" -s v -l verbose -d 'Tell more in the log; twice for debugging'
complete -c copal -n "__fish_copal_using_subcommand bootloader; and not __fish_seen_subcommand_from show write protect help" -s h -l help -d 'Print help'
complete -c copal -n "__fish_copal_using_subcommand bootloader; and not __fish_seen_subcommand_from show write protect help" -f -a "show" -d 'List raw flash and eMMC boot partitions, or compare with an image'
complete -c copal -n "__fish_copal_using_subcommand bootloader; and not __fish_seen_subcommand_from show write protect help" -f -a "write" -d 'Write an image where it differs, its beginning last, and read it back'
complete -c copal -n "__fish_copal_using_subcommand bootloader; and not __fish_seen_subcommand_from show write protect help" -f -a "protect" -d 'Make all eMMC boot partitions refuse writes'
complete -c copal -n "__fish_copal_using_subcommand bootloader; and not __fish_seen_subcommand_from show write protect help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c copal -n "__fish_copal_using_subcommand bootloader; and __fish_seen_subcommand_from show" -l device -d 'A disk, eMMC boot partition, mtdN or mtd:NAME' -r -F
complete -c copal -n "__fish_copal_using_subcommand bootloader; and __fish_seen_subcommand_from show" -l image -d 'The bootloader to compare with' -r -F
complete -c copal -n "__fish_copal_using_subcommand bootloader; and __fish_seen_subcommand_from show" -l block-size -d 'Bytes of a block of --seek; suffixes as in dd' -r
complete -c copal -n "__fish_copal_using_subcommand bootloader; and __fish_seen_subcommand_from show" -l seek -d 'Blocks of the device before the image [default: 0]' -r
complete -c copal -n "__fish_copal_using_subcommand bootloader; and __fish_seen_subcommand_from show" -l root -d 'Folder that stands for / (for tests)' -r -F
complete -c copal -n "__fish_copal_using_subcommand bootloader; and __fish_seen_subcommand_from show" -l json -d 'The result as a JSON line on stdout'
complete -c copal -n "__fish_copal_using_subcommand bootloader; and __fish_seen_subcommand_from show" -s v -l verbose -d 'Tell more in the log; twice for debugging'
complete -c copal -n "__fish_copal_using_subcommand bootloader; and __fish_seen_subcommand_from show" -s h -l help -d 'Print help'
complete -c copal -n "__fish_copal_using_subcommand bootloader; and __fish_seen_subcommand_from write" -l device -d 'A disk, eMMC boot partition, mtdN or mtd:NAME' -r -F
complete -c copal -n "__fish_copal_using_subcommand bootloader; and __fish_seen_subcommand_from write" -l image -d 'The bootloader, as it is to stand on the device' -r -F
complete -c copal -n "__fish_copal_using_subcommand bootloader; and __fish_seen_subcommand_from write" -l block-size -d 'Bytes of a block of --seek; suffixes as in dd' -r
complete -c copal -n "__fish_copal_using_subcommand bootloader; and __fish_seen_subcommand_from write" -l seek -d 'Blocks of the device before the image [default: 0]' -r
complete -c copal -n "__fish_copal_using_subcommand bootloader; and __fish_seen_subcommand_from write" -l root -d 'Folder that stands for / (for tests)' -r -F
complete -c copal -n "__fish_copal_using_subcommand bootloader; and __fish_seen_subcommand_from write" -l dry-run -d 'Check everything and compare; write nothing'
complete -c copal -n "__fish_copal_using_subcommand bootloader; and __fish_seen_subcommand_from write" -l json -d 'The result as a JSON line on stdout'
complete -c copal -n "__fish_copal_using_subcommand bootloader; and __fish_seen_subcommand_from write" -s v -l verbose -d 'Tell more in the log; twice for debugging'
complete -c copal -n "__fish_copal_using_subcommand bootloader; and __fish_seen_subcommand_from write" -s h -l help -d 'Print help'
complete -c copal -n "__fish_copal_using_subcommand bootloader; and __fish_seen_subcommand_from protect" -l root -d 'Folder that stands for / (for tests)' -r -F
complete -c copal -n "__fish_copal_using_subcommand bootloader; and __fish_seen_subcommand_from protect" -l json -d 'The result as a JSON line on stdout'
complete -c copal -n "__fish_copal_using_subcommand bootloader; and __fish_seen_subcommand_from protect" -s v -l verbose -d 'Tell more in the log; twice for debugging'
complete -c copal -n "__fish_copal_using_subcommand bootloader; and __fish_seen_subcommand_from protect" -s h -l help -d 'Print help'
complete -c copal -n "__fish_copal_using_subcommand bootloader; and __fish_seen_subcommand_from help" -f -a "show" -d 'List raw flash and eMMC boot partitions, or compare with an image'
complete -c copal -n "__fish_copal_using_subcommand bootloader; and __fish_seen_subcommand_from help" -f -a "write" -d 'Write an image where it differs, its beginning last, and read it back'
complete -c copal -n "__fish_copal_using_subcommand bootloader; and __fish_seen_subcommand_from help" -f -a "protect" -d 'Make all eMMC boot partitions refuse writes'
complete -c copal -n "__fish_copal_using_subcommand bootloader; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c copal -n "__fish_copal_using_subcommand hooks" -l dir -d 'Where the hooks are [default: /etc/hostapp-update-hooks.d]' -r -f -a "(__fish_complete_directories)"
complete -c copal -n "__fish_copal_using_subcommand hooks" -l root -d 'Folder that stands for / (for tests)' -r -F
complete -c copal -n "__fish_copal_using_subcommand hooks" -l before -d 'The hooks that run in the old system before an update'
complete -c copal -n "__fish_copal_using_subcommand hooks" -l after -d 'The hooks that run in the old system after an update'
complete -c copal -n "__fish_copal_using_subcommand hooks" -l commit -d 'The hooks that run in the new system when it is to stay'
complete -c copal -n "__fish_copal_using_subcommand hooks" -l full -d 'All hooks of an update: before, forward, after'
complete -c copal -n "__fish_copal_using_subcommand hooks" -l list -d 'Show what would run, in its order; run nothing'
complete -c copal -n "__fish_copal_using_subcommand hooks" -l json -d 'The result as a JSON line on stdout'
complete -c copal -n "__fish_copal_using_subcommand hooks" -s v -l verbose -d 'Tell more in the log; twice for debugging'
complete -c copal -n "__fish_copal_using_subcommand hooks" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c copal -n "__fish_copal_using_subcommand rollback; and not __fish_seen_subcommand_from health altboot stop mark-good now tests boot-check commit-hooks check-version clear-bootcount parse-bootloader help" -s v -l verbose -d 'Tell more in the log; twice for debugging'
complete -c copal -n "__fish_copal_using_subcommand rollback; and not __fish_seen_subcommand_from health altboot stop mark-good now tests boot-check commit-hooks check-version clear-bootcount parse-bootloader help" -s h -l help -d 'Print help'
complete -c copal -n "__fish_copal_using_subcommand rollback; and not __fish_seen_subcommand_from health altboot stop mark-good now tests boot-check commit-hooks check-version clear-bootcount parse-bootloader help" -f -a "health" -d 'Test the system on trial, then commit it or roll back'
complete -c copal -n "__fish_copal_using_subcommand rollback; and not __fish_seen_subcommand_from health altboot stop mark-good now tests boot-check commit-hooks check-version clear-bootcount parse-bootloader help" -f -a "altboot" -d 'Go on after the bootloader has gone back by itself'
complete -c copal -n "__fish_copal_using_subcommand rollback; and not __fish_seen_subcommand_from health altboot stop mark-good now tests boot-check commit-hooks check-version clear-bootcount parse-bootloader help" -f -a "stop" -d 'End a trial: the running system is kept without checks'
complete -c copal -n "__fish_copal_using_subcommand rollback; and not __fish_seen_subcommand_from health altboot stop mark-good now tests boot-check commit-hooks check-version clear-bootcount parse-bootloader help" -f -a "mark-good" -d 'Commit the running system without checks, and run its commit hooks'
complete -c copal -n "__fish_copal_using_subcommand rollback; and not __fish_seen_subcommand_from health altboot stop mark-good now tests boot-check commit-hooks check-version clear-bootcount parse-bootloader help" -f -a "now" -d 'Roll back a system on trial, or undo a pending update'
complete -c copal -n "__fish_copal_using_subcommand rollback; and not __fish_seen_subcommand_from health altboot stop mark-good now tests boot-check commit-hooks check-version clear-bootcount parse-bootloader help" -f -a "tests" -d 'Run the health checks, and do nothing about them'
complete -c copal -n "__fish_copal_using_subcommand rollback; and not __fish_seen_subcommand_from health altboot stop mark-good now tests boot-check commit-hooks check-version clear-bootcount parse-bootloader help" -f -a "boot-check" -d 'At boot: make boot state, boot files and breadcrumbs agree'
complete -c copal -n "__fish_copal_using_subcommand rollback; and not __fish_seen_subcommand_from health altboot stop mark-good now tests boot-check commit-hooks check-version clear-bootcount parse-bootloader help" -f -a "commit-hooks" -d 'Run the commit hooks that a power cut has prevented'
complete -c copal -n "__fish_copal_using_subcommand rollback; and not __fish_seen_subcommand_from health altboot stop mark-good now tests boot-check commit-hooks check-version clear-bootcount parse-bootloader help" -f -a "check-version" -d 'Tell whether the other system is new enough to go back to'
complete -c copal -n "__fish_copal_using_subcommand rollback; and not __fish_seen_subcommand_from health altboot stop mark-good now tests boot-check commit-hooks check-version clear-bootcount parse-bootloader help" -f -a "clear-bootcount" -d 'Before a wanted reboot: it is no failed boot'
complete -c copal -n "__fish_copal_using_subcommand rollback; and not __fish_seen_subcommand_from health altboot stop mark-good now tests boot-check commit-hooks check-version clear-bootcount parse-bootloader help" -f -a "parse-bootloader" -d 'Print what rollback-parse-bootloader defines in a shell'
complete -c copal -n "__fish_copal_using_subcommand rollback; and not __fish_seen_subcommand_from health altboot stop mark-good now tests boot-check commit-hooks check-version clear-bootcount parse-bootloader help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c copal -n "__fish_copal_using_subcommand rollback; and __fish_seen_subcommand_from health" -l root -d 'Folder that stands for / (for tests)' -r -F
complete -c copal -n "__fish_copal_using_subcommand rollback; and __fish_seen_subcommand_from health" -l json -d 'The result as a JSON line on stdout'
complete -c copal -n "__fish_copal_using_subcommand rollback; and __fish_seen_subcommand_from health" -s v -l verbose -d 'Tell more in the log; twice for debugging'
complete -c copal -n "__fish_copal_using_subcommand rollback; and __fish_seen_subcommand_from health" -s h -l help -d 'Print help'
complete -c copal -n "__fish_copal_using_subcommand rollback; and __fish_seen_subcommand_from altboot" -l root -d 'Folder that stands for / (for tests)' -r -F
complete -c copal -n "__fish_copal_using_subcommand rollback; and __fish_seen_subcommand_from altboot" -l json -d 'The result as a JSON line on stdout'
complete -c copal -n "__fish_copal_using_subcommand rollback; and __fish_seen_subcommand_from altboot" -s v -l verbose -d 'Tell more in the log; twice for debugging'
complete -c copal -n "__fish_copal_using_subcommand rollback; and __fish_seen_subcommand_from altboot" -s h -l help -d 'Print help'
complete -c copal -n "__fish_copal_using_subcommand rollback; and __fish_seen_subcommand_from stop" -l root -d 'Folder that stands for / (for tests)' -r -F
complete -c copal -n "__fish_copal_using_subcommand rollback; and __fish_seen_subcommand_from stop" -l force -d 'Also while the other system is selected, and stays selected'
complete -c copal -n "__fish_copal_using_subcommand rollback; and __fish_seen_subcommand_from stop" -l json -d 'The result as a JSON line on stdout'
complete -c copal -n "__fish_copal_using_subcommand rollback; and __fish_seen_subcommand_from stop" -s v -l verbose -d 'Tell more in the log; twice for debugging'
complete -c copal -n "__fish_copal_using_subcommand rollback; and __fish_seen_subcommand_from stop" -s h -l help -d 'Print help'
complete -c copal -n "__fish_copal_using_subcommand rollback; and __fish_seen_subcommand_from mark-good" -l root -d 'Folder that stands for / (for tests)' -r -F
complete -c copal -n "__fish_copal_using_subcommand rollback; and __fish_seen_subcommand_from mark-good" -l json -d 'The result as a JSON line on stdout'
complete -c copal -n "__fish_copal_using_subcommand rollback; and __fish_seen_subcommand_from mark-good" -s v -l verbose -d 'Tell more in the log; twice for debugging'
complete -c copal -n "__fish_copal_using_subcommand rollback; and __fish_seen_subcommand_from mark-good" -s h -l help -d 'Print help'
complete -c copal -n "__fish_copal_using_subcommand rollback; and __fish_seen_subcommand_from now" -l root -d 'Folder that stands for / (for tests)' -r -F
complete -c copal -n "__fish_copal_using_subcommand rollback; and __fish_seen_subcommand_from now" -l json -d 'The result as a JSON line on stdout'
complete -c copal -n "__fish_copal_using_subcommand rollback; and __fish_seen_subcommand_from now" -s v -l verbose -d 'Tell more in the log; twice for debugging'
complete -c copal -n "__fish_copal_using_subcommand rollback; and __fish_seen_subcommand_from now" -s h -l help -d 'Print help'
complete -c copal -n "__fish_copal_using_subcommand rollback; and __fish_seen_subcommand_from tests" -l root -d 'Folder that stands for / (for tests)' -r -F
complete -c copal -n "__fish_copal_using_subcommand rollback; and __fish_seen_subcommand_from tests" -l json -d 'The result as a JSON line on stdout'
complete -c copal -n "__fish_copal_using_subcommand rollback; and __fish_seen_subcommand_from tests" -s v -l verbose -d 'Tell more in the log; twice for debugging'
complete -c copal -n "__fish_copal_using_subcommand rollback; and __fish_seen_subcommand_from tests" -s h -l help -d 'Print help'
complete -c copal -n "__fish_copal_using_subcommand rollback; and __fish_seen_subcommand_from boot-check" -l root -d 'Folder that stands for / (for tests)' -r -F
complete -c copal -n "__fish_copal_using_subcommand rollback; and __fish_seen_subcommand_from boot-check" -l json -d 'The result as a JSON line on stdout'
complete -c copal -n "__fish_copal_using_subcommand rollback; and __fish_seen_subcommand_from boot-check" -s v -l verbose -d 'Tell more in the log; twice for debugging'
complete -c copal -n "__fish_copal_using_subcommand rollback; and __fish_seen_subcommand_from boot-check" -s h -l help -d 'Print help'
complete -c copal -n "__fish_copal_using_subcommand rollback; and __fish_seen_subcommand_from commit-hooks" -l root -d 'Folder that stands for / (for tests)' -r -F
complete -c copal -n "__fish_copal_using_subcommand rollback; and __fish_seen_subcommand_from commit-hooks" -l json -d 'The result as a JSON line on stdout'
complete -c copal -n "__fish_copal_using_subcommand rollback; and __fish_seen_subcommand_from commit-hooks" -s v -l verbose -d 'Tell more in the log; twice for debugging'
complete -c copal -n "__fish_copal_using_subcommand rollback; and __fish_seen_subcommand_from commit-hooks" -s h -l help -d 'Print help'
complete -c copal -n "__fish_copal_using_subcommand rollback; and __fish_seen_subcommand_from check-version" -l root -d 'Folder that stands for / (for tests)' -r -F
complete -c copal -n "__fish_copal_using_subcommand rollback; and __fish_seen_subcommand_from check-version" -l json -d 'The result as a JSON line on stdout'
complete -c copal -n "__fish_copal_using_subcommand rollback; and __fish_seen_subcommand_from check-version" -s v -l verbose -d 'Tell more in the log; twice for debugging'
complete -c copal -n "__fish_copal_using_subcommand rollback; and __fish_seen_subcommand_from check-version" -s h -l help -d 'Print help'
complete -c copal -n "__fish_copal_using_subcommand rollback; and __fish_seen_subcommand_from clear-bootcount" -l root -d 'Folder that stands for / (for tests)' -r -F
complete -c copal -n "__fish_copal_using_subcommand rollback; and __fish_seen_subcommand_from clear-bootcount" -l json -d 'The result as a JSON line on stdout'
complete -c copal -n "__fish_copal_using_subcommand rollback; and __fish_seen_subcommand_from clear-bootcount" -s v -l verbose -d 'Tell more in the log; twice for debugging'
complete -c copal -n "__fish_copal_using_subcommand rollback; and __fish_seen_subcommand_from clear-bootcount" -s h -l help -d 'Print help'
complete -c copal -n "__fish_copal_using_subcommand rollback; and __fish_seen_subcommand_from parse-bootloader" -l root -d 'Folder that stands for / (for tests)' -r -F
complete -c copal -n "__fish_copal_using_subcommand rollback; and __fish_seen_subcommand_from parse-bootloader" -s v -l verbose -d 'Tell more in the log; twice for debugging'
complete -c copal -n "__fish_copal_using_subcommand rollback; and __fish_seen_subcommand_from parse-bootloader" -s h -l help -d 'Print help'
complete -c copal -n "__fish_copal_using_subcommand rollback; and __fish_seen_subcommand_from help" -f -a "health" -d 'Test the system on trial, then commit it or roll back'
complete -c copal -n "__fish_copal_using_subcommand rollback; and __fish_seen_subcommand_from help" -f -a "altboot" -d 'Go on after the bootloader has gone back by itself'
complete -c copal -n "__fish_copal_using_subcommand rollback; and __fish_seen_subcommand_from help" -f -a "stop" -d 'End a trial: the running system is kept without checks'
complete -c copal -n "__fish_copal_using_subcommand rollback; and __fish_seen_subcommand_from help" -f -a "mark-good" -d 'Commit the running system without checks, and run its commit hooks'
complete -c copal -n "__fish_copal_using_subcommand rollback; and __fish_seen_subcommand_from help" -f -a "now" -d 'Roll back a system on trial, or undo a pending update'
complete -c copal -n "__fish_copal_using_subcommand rollback; and __fish_seen_subcommand_from help" -f -a "tests" -d 'Run the health checks, and do nothing about them'
complete -c copal -n "__fish_copal_using_subcommand rollback; and __fish_seen_subcommand_from help" -f -a "boot-check" -d 'At boot: make boot state, boot files and breadcrumbs agree'
complete -c copal -n "__fish_copal_using_subcommand rollback; and __fish_seen_subcommand_from help" -f -a "commit-hooks" -d 'Run the commit hooks that a power cut has prevented'
complete -c copal -n "__fish_copal_using_subcommand rollback; and __fish_seen_subcommand_from help" -f -a "check-version" -d 'Tell whether the other system is new enough to go back to'
complete -c copal -n "__fish_copal_using_subcommand rollback; and __fish_seen_subcommand_from help" -f -a "clear-bootcount" -d 'Before a wanted reboot: it is no failed boot'
complete -c copal -n "__fish_copal_using_subcommand rollback; and __fish_seen_subcommand_from help" -f -a "parse-bootloader" -d 'Print what rollback-parse-bootloader defines in a shell'
complete -c copal -n "__fish_copal_using_subcommand rollback; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c copal -n "__fish_copal_using_subcommand status" -l root -d 'Folder that stands for / (for tests)' -r -F
complete -c copal -n "__fish_copal_using_subcommand status" -l json -d 'The result as a JSON line on stdout'
complete -c copal -n "__fish_copal_using_subcommand status" -l history -d 'What became of every update that is known'
complete -c copal -n "__fish_copal_using_subcommand status" -l log -d 'The last journal lines of the system that was rolled back'
complete -c copal -n "__fish_copal_using_subcommand status" -s v -l verbose -d 'Tell more in the log; twice for debugging'
complete -c copal -n "__fish_copal_using_subcommand status" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c copal -n "__fish_copal_using_subcommand doctor" -l root -d 'Folder that stands for / (for tests)' -r -F
complete -c copal -n "__fish_copal_using_subcommand doctor" -l json -d 'The findings as JSON lines on stdout'
complete -c copal -n "__fish_copal_using_subcommand doctor" -s v -l verbose -d 'Tell more in the log; twice for debugging'
complete -c copal -n "__fish_copal_using_subcommand doctor" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c copal -n "__fish_copal_using_subcommand daemon" -l idle -d 'Seconds without a call and without a job after which it ends (for tests)' -r
complete -c copal -n "__fish_copal_using_subcommand daemon" -l worker -d 'The program that does the jobs (for tests)' -r -F
complete -c copal -n "__fish_copal_using_subcommand daemon" -l root -d 'Folder that stands for / (for tests)' -r -F
complete -c copal -n "__fish_copal_using_subcommand daemon" -s v -l verbose -d 'Tell more in the log; twice for debugging'
complete -c copal -n "__fish_copal_using_subcommand daemon" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c copal -n "__fish_copal_using_subcommand completions" -s v -l verbose -d 'Tell more in the log; twice for debugging'
complete -c copal -n "__fish_copal_using_subcommand completions" -s h -l help -d 'Print help'
complete -c copal -n "__fish_copal_using_subcommand man" -s v -l verbose -d 'Tell more in the log; twice for debugging'
complete -c copal -n "__fish_copal_using_subcommand man" -s h -l help -d 'Print help'
complete -c copal -n "__fish_copal_using_subcommand help; and not __fish_seen_subcommand_from flash update verify digest bootloader hooks rollback status doctor daemon completions man help" -f -a "flash" -d 'Write an OS image to a disk, and prove that it is there'
complete -c copal -n "__fish_copal_using_subcommand help; and not __fish_seen_subcommand_from flash update verify digest bootloader hooks rollback status doctor daemon completions man help" -f -a "update" -d 'Install a release of the host OS in the other slot, and select it'
complete -c copal -n "__fish_copal_using_subcommand help; and not __fish_seen_subcommand_from flash update verify digest bootloader hooks rollback status doctor daemon completions man help" -f -a "verify" -d 'Compare a disk with an image, without writing'
complete -c copal -n "__fish_copal_using_subcommand help; and not __fish_seen_subcommand_from flash update verify digest bootloader hooks rollback status doctor daemon completions man help" -f -a "digest" -d 'Print the chunk digest of an image, as receipts have it'
complete -c copal -n "__fish_copal_using_subcommand help; and not __fish_seen_subcommand_from flash update verify digest bootloader hooks rollback status doctor daemon completions man help" -f -a "bootloader" -d 'Write a bootloader outside file systems, or show where one can go'
complete -c copal -n "__fish_copal_using_subcommand help; and not __fish_seen_subcommand_from flash update verify digest bootloader hooks rollback status doctor daemon completions man help" -f -a "hooks" -d 'Run the hooks of host OS updates, or show which would run'
complete -c copal -n "__fish_copal_using_subcommand help; and not __fish_seen_subcommand_from flash update verify digest bootloader hooks rollback status doctor daemon completions man help" -f -a "rollback" -d 'Follow the trial of an update, or end it'
complete -c copal -n "__fish_copal_using_subcommand help; and not __fish_seen_subcommand_from flash update verify digest bootloader hooks rollback status doctor daemon completions man help" -f -a "status" -d 'Show where the device stands, and what the last update came to'
complete -c copal -n "__fish_copal_using_subcommand help; and not __fish_seen_subcommand_from flash update verify digest bootloader hooks rollback status doctor daemon completions man help" -f -a "doctor" -d 'Look for what would stop a flash, an update or a rollback'
complete -c copal -n "__fish_copal_using_subcommand help; and not __fish_seen_subcommand_from flash update verify digest bootloader hooks rollback status doctor daemon completions man help" -f -a "daemon" -d 'Serve updates on the system bus, as io.balena.Copal1'
complete -c copal -n "__fish_copal_using_subcommand help; and not __fish_seen_subcommand_from flash update verify digest bootloader hooks rollback status doctor daemon completions man help" -f -a "completions" -d 'Print a completion script for a shell'
complete -c copal -n "__fish_copal_using_subcommand help; and not __fish_seen_subcommand_from flash update verify digest bootloader hooks rollback status doctor daemon completions man help" -f -a "man" -d 'Print a manual page, as a release has it'
complete -c copal -n "__fish_copal_using_subcommand help; and not __fish_seen_subcommand_from flash update verify digest bootloader hooks rollback status doctor daemon completions man help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c copal -n "__fish_copal_using_subcommand help; and __fish_seen_subcommand_from bootloader" -f -a "show" -d 'List raw flash and eMMC boot partitions, or compare with an image'
complete -c copal -n "__fish_copal_using_subcommand help; and __fish_seen_subcommand_from bootloader" -f -a "write" -d 'Write an image where it differs, its beginning last, and read it back'
complete -c copal -n "__fish_copal_using_subcommand help; and __fish_seen_subcommand_from bootloader" -f -a "protect" -d 'Make all eMMC boot partitions refuse writes'
complete -c copal -n "__fish_copal_using_subcommand help; and __fish_seen_subcommand_from rollback" -f -a "health" -d 'Test the system on trial, then commit it or roll back'
complete -c copal -n "__fish_copal_using_subcommand help; and __fish_seen_subcommand_from rollback" -f -a "altboot" -d 'Go on after the bootloader has gone back by itself'
complete -c copal -n "__fish_copal_using_subcommand help; and __fish_seen_subcommand_from rollback" -f -a "stop" -d 'End a trial: the running system is kept without checks'
complete -c copal -n "__fish_copal_using_subcommand help; and __fish_seen_subcommand_from rollback" -f -a "mark-good" -d 'Commit the running system without checks, and run its commit hooks'
complete -c copal -n "__fish_copal_using_subcommand help; and __fish_seen_subcommand_from rollback" -f -a "now" -d 'Roll back a system on trial, or undo a pending update'
complete -c copal -n "__fish_copal_using_subcommand help; and __fish_seen_subcommand_from rollback" -f -a "tests" -d 'Run the health checks, and do nothing about them'
complete -c copal -n "__fish_copal_using_subcommand help; and __fish_seen_subcommand_from rollback" -f -a "boot-check" -d 'At boot: make boot state, boot files and breadcrumbs agree'
complete -c copal -n "__fish_copal_using_subcommand help; and __fish_seen_subcommand_from rollback" -f -a "commit-hooks" -d 'Run the commit hooks that a power cut has prevented'
complete -c copal -n "__fish_copal_using_subcommand help; and __fish_seen_subcommand_from rollback" -f -a "check-version" -d 'Tell whether the other system is new enough to go back to'
complete -c copal -n "__fish_copal_using_subcommand help; and __fish_seen_subcommand_from rollback" -f -a "clear-bootcount" -d 'Before a wanted reboot: it is no failed boot'
complete -c copal -n "__fish_copal_using_subcommand help; and __fish_seen_subcommand_from rollback" -f -a "parse-bootloader" -d 'Print what rollback-parse-bootloader defines in a shell'
