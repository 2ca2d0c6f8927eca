package liftlog.records;

/**
 * The header of a record batch, 64 bytes:
 *
 * <pre>
 *  0  4  magic "LLB" 1              32  8  max timestamp, ns
 *  4  4  length of the batch        40  4  leader epoch
 *  8  8  base offset                44  2  attributes
 * 16  4  last offset delta          46  2  commit group
 * 20  4  record count               48  8  reserved, 0
 * 24  8  base timestamp, ns         56  4  CRC-32C of the body, then of bytes 0 to 59
 * </pre>
 */
public record BatchHeader(
        int length,
        long baseOffset,
        long nextOffset,
        int recordCount,
        long baseTimestampNs,
        long maxTimestampNs,
        long leaderEpoch,
        int attributes,
        int bodyCrc) {

    public static final int SIZE = 64;
    public static final int MAGIC = 0x01424C4C;

    public static final int CODEC_MASK = 0x0007;
    public static final int OFFSET_DELTAS = 0x0010;
    public static final int TIMESTAMP_DELTAS = 0x0020;
    public static final int SUBJECT_IDS = 0x0040;
    public static final int KEYS = 0x0080;
    public static final int HEADERS = 0x0100;
    public static final int TOMBSTONES = 0x0200;
    public static final int ESCAPED_SUBJECTS = 0x0400;

    private static final int KNOWN = 0x07F7;
    private static final int LAST_CODEC = 2;
    private static final int CRC_AT = 60;

    /** Parses the header at {@code at}. {@code end} is the end of the readable bytes. */
    public static BatchHeader parse(byte[] bytes, int at, int end) throws CorruptBatch {
        if (end - at < SIZE) {
            throw new CorruptBatch(Math.max(end - at, 0) + " bytes are too few for a batch header");
        }
        int magic = Bytes.i32(bytes, at);
        if ((magic & 0xFFFFFF) != (MAGIC & 0xFFFFFF)) {
            throw new CorruptBatch(
                    String.format("no batch starts here: the magic is %08x", Integer.reverseBytes(magic)));
        }
        if (Bytes.crc32c(bytes, at, CRC_AT) != Bytes.i32(bytes, at + CRC_AT)) {
            throw new CorruptBatch("the header checksum does not match");
        }
        int attributes = Bytes.u16(bytes, at + 44);
        checkKnown(magic, attributes, Bytes.i64(bytes, at + 48));
        int length = Bytes.i32(bytes, at + 4);
        if (length < SIZE || (length & 7) != 0) {
            throw new CorruptBatch("impossible batch length " + Bytes.u32(bytes, at + 4));
        }
        long baseOffset = Bytes.i64(bytes, at + 8);
        long lastDelta = Bytes.u32(bytes, at + 16);
        long recordCount = Bytes.u32(bytes, at + 20);
        if (recordCount > lastDelta + 1 || recordCount > 0xFFFF) {
            throw new CorruptBatch("more records than offsets in the batch");
        }
        return new BatchHeader(
                length,
                baseOffset,
                baseOffset + lastDelta + 1,
                (int) recordCount,
                Bytes.i64(bytes, at + 24),
                Bytes.i64(bytes, at + 32),
                Bytes.u32(bytes, at + 40),
                attributes,
                Bytes.i32(bytes, at + 56));
    }

    public boolean has(int attribute) {
        return (attributes & attribute) != 0;
    }

    public int codec() {
        return attributes & CODEC_MASK;
    }

    /**
     * Checks that the body at {@code at} is intact. The batch has {@code length} bytes, with the
     * header.
     */
    public void checkBody(byte[] bytes, int at, int end) throws CorruptBatch {
        if (end - at < length) {
            throw new CorruptBatch("the batch is cut: " + (end - at) + " of " + length + " bytes");
        }
        if (Bytes.crc32c(bytes, at + SIZE, length - SIZE) != bodyCrc) {
            throw new CorruptBatch("the body checksum does not match");
        }
    }

    private static void checkKnown(int magic, int attributes, long reserved) {
        String problem = null;
        if (magic != MAGIC) {
            problem = "record batch format version " + (magic >>> 24) + " is not known";
        } else if (reserved != 0) {
            problem = "the reserved header field is not 0";
        } else if ((attributes & ~KNOWN) != 0) {
            problem = String.format("batch attribute bits 0x%04x are not known", attributes & ~KNOWN);
        } else if ((attributes & CODEC_MASK) > LAST_CODEC) {
            problem = "batch codec " + (attributes & CODEC_MASK) + " is not known";
        }
        if (problem != null) {
            throw new Failure(Failure.UNSUPPORTED_FORMAT, problem);
        }
    }
}
