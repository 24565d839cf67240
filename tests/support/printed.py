"""Printed text, compared with a document."""

import doctest
import math
import re

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class NumberChecker(doctest.OutputChecker):
    """Numbers agree as far as they are written: 0.33 stands for 0.3333, and 3 only for 3."""

    number = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?")

    def check_output(self, want, got, optionflags):
        if super().check_output(want, got, optionflags):
            return True
        wanted, gotten = self.number.findall(want), self.number.findall(got)
        # numpy pads numbers to a common width, so that white space depends on their digits.
        same_text = "".join(self.number.sub("#", want).split()) == "".join(self.number.sub("#", got).split())
        return same_text and len(wanted) == len(gotten) and all(map(self.close, wanted, gotten))

    @staticmethod
    def close(want, got):
        digits, _, exponent = want.lower().partition("e")
        if "." not in digits and not exponent:
            return want.lstrip("+") == got.lstrip("+").removesuffix(".")
        unit = 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))
        return math.isclose(float(want), float(got), rel_tol=1e-12, abs_tol=0.5000001 * unit)
