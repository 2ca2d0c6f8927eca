package liftlog.wire;

import java.io.ByteArrayOutputStream;
import java.nio.BufferUnderflowException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import liftlog.records.Failure;

/**
 * The part of msgpack that the pull protocol uses: maps with string keys, arrays, integers,
 * strings, bytes, booleans, floats and nil. Integers are Long in Java, bytes are byte[].
 */
final class Msgpack {
    private static final int MOST_DEPTH = 8;
    private static final int MOST_VALUES = 8_000_000;

    private final ByteBuffer input;
    private int values;

    private Msgpack(ByteBuffer input) {
        this.input = input;
    }

    // --- writing ---

    /** Encodes a map. Keys without a value are left out. */
    static byte[] encode(Map<String, Object> map) {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        write(out, map);
        return out.toByteArray();
    }

    private static void write(ByteArrayOutputStream out, Object value) {
        if (value instanceof Map<?, ?> map) {
            long present = map.values().stream().filter(one -> one != null).count();
            out.write(0xDE);
            number(out, present, 2);
            map.forEach((key, one) -> {
                if (one != null) {
                    write(out, key);
                    write(out, one);
                }
            });
        } else if (value instanceof List<?> list) {
            out.write(0xDC);
            number(out, list.size(), 2);
            list.forEach(one -> write(out, one));
        } else if (value instanceof String text) {
            byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
            out.write(0xDB);
            number(out, bytes.length, 4);
            out.writeBytes(bytes);
        } else if (value instanceof byte[] bytes) {
            out.write(0xC6);
            number(out, bytes.length, 4);
            out.writeBytes(bytes);
        } else if (value instanceof Boolean flag) {
            out.write(flag ? 0xC3 : 0xC2);
        } else if (value instanceof Number whole) {
            out.write(0xCF);
            number(out, whole.longValue(), 8);
        } else {
            throw new IllegalArgumentException("msgpack has no " + value);
        }
    }

    private static void number(ByteArrayOutputStream out, long value, int bytes) {
        for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) {
            out.write((int) (value >> shift));
        }
    }

    // --- reading ---

    /** Decodes the bytes, which must be exactly one map. Throws Failure PROTOCOL_VIOLATION. */
    static Map<String, Object> decode(byte[] bytes, int length) {
        Msgpack reader = new Msgpack(ByteBuffer.wrap(bytes, 0, length));
        try {
            Object found = reader.read(1);
            if (found instanceof Map<?, ?> && !reader.input.hasRemaining()) {
                Map<String, Object> map = new LinkedHashMap<>();
                ((Map<?, ?>) found).forEach((key, value) -> map.put((String) key, value));
                return map;
            }
        } catch (BufferUnderflowException error) {
            // reported below
        }
        throw violation();
    }

    private Object read(int depth) {
        if (++values > MOST_VALUES || depth > MOST_DEPTH + 1) {
            throw violation();
        }
        int kind = input.get() & 0xFF;
        if (kind < 0x80) {
            return (long) kind;
        } else if (kind < 0x90) {
            return map(kind & 0x0F, depth);
        } else if (kind < 0xA0) {
            return array(kind & 0x0F, depth);
        } else if (kind < 0xC0) {
            return text(kind & 0x1F);
        } else if (kind >= 0xE0) {
            return (long) (byte) kind;
        }
        return switch (kind) {
            case 0xC0 -> null;
            case 0xC2 -> false;
            case 0xC3 -> true;
            case 0xC4 -> bytes(input.get() & 0xFF);
            case 0xC5 -> bytes(input.getShort() & 0xFFFF);
            case 0xC6 -> bytes(input.getInt());
            case 0xCA -> (double) input.getFloat();
            case 0xCB -> input.getDouble();
            case 0xCC -> (long) (input.get() & 0xFF);
            case 0xCD -> (long) (input.getShort() & 0xFFFF);
            case 0xCE -> input.getInt() & 0xFFFF_FFFFL;
            case 0xCF, 0xD3 -> input.getLong();
            case 0xD0 -> (long) input.get();
            case 0xD1 -> (long) input.getShort();
            case 0xD2 -> (long) input.getInt();
            case 0xD9 -> text(input.get() & 0xFF);
            case 0xDA -> text(input.getShort() & 0xFFFF);
            case 0xDB -> text(input.getInt());
            case 0xDC -> array(input.getShort() & 0xFFFF, depth);
            case 0xDD -> array(input.getInt(), depth);
            case 0xDE -> map(input.getShort() & 0xFFFF, depth);
            case 0xDF -> map(input.getInt(), depth);
            default -> throw violation();
        };
    }

    private Map<String, Object> map(int count, int depth) {
        Map<String, Object> found = new LinkedHashMap<>();
        for (int i = 0; i < checked(count); i++) {
            if (!(read(depth + 1) instanceof String key)) {
                throw violation();
            }
            found.put(key, read(depth + 1));
        }
        return found;
    }

    private List<Object> array(int count, int depth) {
        List<Object> found = new ArrayList<>();
        for (int i = 0; i < checked(count); i++) {
            found.add(read(depth + 1));
        }
        return found;
    }

    private String text(int length) {
        return new String(bytes(length), StandardCharsets.UTF_8);
    }

    private byte[] bytes(int length) {
        byte[] found = new byte[checked(length)];
        input.get(found);
        return found;
    }

    /** Checks a number of items: it cannot be larger than the number of bytes of the frame. */
    private int checked(int count) {
        if (count < 0 || count > input.limit()) {
            throw violation();
        }
        return count;
    }

    private static Failure violation() {
        return new Failure(Failure.PROTOCOL_VIOLATION, "the server sent a frame that is not msgpack");
    }
}
