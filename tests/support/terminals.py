"""A terminal in place of stderr, and the text shown on it."""

import fcntl
import os
import re
import struct
import sys
import termios
import threading


class Terminal:
    """A terminal in place of stderr: what was written to it, as lines and as the states of one line."""

    def __init__(self, columns=100):
        self.master, slave = os.openpty()
        self.stream, self.written = os.fdopen(slave, "w", encoding="utf-8"), b""
        self.resize(columns)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    @property
    def stderr(self):
        return self.stream

    @property
    def stdout(self):
        return sys.stdout

    def resize(self, columns, rows=24):
        fcntl.ioctl(self.stream.fileno(), termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def _read(self):
        while True:
            try:
                self.written += os.read(self.master, 4096)
            except OSError:  # The other side was closed.
                return

    def states(self):
        """What was shown, one after the other."""
        self.stream.close()
        self.reader.join()
        os.close(self.master)
        return [s.strip() for s in re.split(r"[\r\n]+", self.written.decode()) if s.strip()]
