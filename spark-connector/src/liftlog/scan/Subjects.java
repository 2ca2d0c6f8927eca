package liftlog.scan;

/** Subject patterns of NATS: {@code *} is one token, {@code >} at the end one or more. */
public final class Subjects {
    private static final int MOST_BYTES = 1024;

    private Subjects() {}

    /** What is wrong with a pattern; null if it is valid. */
    public static String whyInvalid(String pattern) {
        if (pattern.isEmpty()) {
            return "it is empty";
        }
        if (pattern.chars().anyMatch(one -> Character.isWhitespace(one) || Character.isISOControl(one))) {
            return "white space and control characters are not allowed";
        }
        if (pattern.getBytes(java.nio.charset.StandardCharsets.UTF_8).length > MOST_BYTES) {
            return "it is longer than " + MOST_BYTES + " bytes";
        }
        String[] tokens = pattern.split("\\.", -1);
        for (int i = 0; i < tokens.length; i++) {
            String token = tokens[i];
            if (token.isEmpty()) {
                return "it has an empty token (a dot at an end, or two dots in a row)";
            }
            if (token.length() > 1 && (token.contains("*") || token.contains(">"))) {
                return "a wildcard must be a whole token, unlike in '" + token + "'";
            }
            if (token.equals(">") && i < tokens.length - 1) {
                return "'>' must be the last token";
            }
        }
        return null;
    }

    /** Whether it can be a subject that matches itself only. */
    public static boolean isLiteral(String subject) {
        return whyInvalid(subject) == null && !subject.contains("*") && !subject.contains(">");
    }

    public static boolean matches(String pattern, String subject) {
        String[] wanted = pattern.split("\\.", -1);
        String[] given = subject.split("\\.", -1);
        boolean open = wanted[wanted.length - 1].equals(">");
        if (open ? given.length < wanted.length : given.length != wanted.length) {
            return false;
        }
        for (int i = 0; i < given.length; i++) {
            if (given[i].isEmpty()) {
                return false;
            }
            boolean any = i >= wanted.length || open && i == wanted.length - 1
                    || wanted[i].equals("*");
            if (!any && !wanted[i].equals(given[i])) {
                return false;
            }
        }
        return true;
    }
}
