/** Says in one sentence what is wrong with a kit or with data. */
class BadInput extends Exception {
    BadInput(String sentence, Object... values) {
        super(String.format(java.util.Locale.ROOT, sentence, values));
    }
}
