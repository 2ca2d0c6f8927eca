package liftlog.scan;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/**
 * Subject patterns of NATS. {@code *} matches one token; {@code >} at the end matches one or more
 * tokens.
 */
public final class Subjects {
    private static final int MOST_BYTES = 1024;

    private Subjects() {}

    /** Returns the problem of a pattern; null if it is valid. */
    public static String whyInvalid(String pattern) {
        if (pattern.isEmpty()) {
            return "it is empty";
        }
        if (pattern.chars().anyMatch(one -> Character.isWhitespace(one) || Character.isISOControl(one))) {
            return "white space and control characters are not allowed";
        }
        if (pattern.getBytes(StandardCharsets.UTF_8).length > MOST_BYTES) {
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

    /** Returns true if the text is a subject that only matches itself. */
    public static boolean isLiteral(String subject) {
        return whyInvalid(subject) == null && !subject.contains("*") && !subject.contains(">");
    }

    /** Returns the tokens of a valid pattern. */
    static byte[][] tokens(String pattern) {
        return Arrays.stream(pattern.split("\\.", -1))
                .map(one -> one.getBytes(StandardCharsets.UTF_8))
                .toArray(byte[][]::new);
    }

    /** Returns true if the subject in {@code [start, end)} of the bytes matches these tokens. */
    static boolean matches(byte[][] pattern, byte[] bytes, int start, int end) {
        boolean open = is(pattern[pattern.length - 1], '>');
        int token = 0;
        int from = start;
        while (true) {
            int to = from;
            while (to < end && bytes[to] != '.') {
                to++;
            }
            boolean isCovered = token < pattern.length || open;
            if (to == from || !isCovered) {
                return false;
            }
            byte[] wanted = pattern[Math.min(token, pattern.length - 1)];
            boolean any = is(wanted, '*') || open && token >= pattern.length - 1;
            if (!any && !Arrays.equals(bytes, from, to, wanted, 0, wanted.length)) {
                return false;
            }
            token++;
            if (to == end) {
                return open ? token >= pattern.length : token == pattern.length;
            }
            from = to + 1;
        }
    }

    private static boolean is(byte[] token, char one) {
        return token.length == 1 && token[0] == one;
    }
}
