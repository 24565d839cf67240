/** Says in one sentence what is wrong with a kit or with data. */
class BadInput extends Exception {
    BadInput(String sentence, Object... values) {
        super(sentence.formatted(values));
    }
}
