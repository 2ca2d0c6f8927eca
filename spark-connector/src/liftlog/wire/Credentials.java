package liftlog.wire;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyPair;
import java.security.KeyPairGenerator;
import java.security.MessageDigest;
import java.security.SecureRandom;
import java.security.Signature;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import liftlog.records.Failure;
import liftlog.scan.ScanOptions;

/** The credentials with which a connection proves its identity: a token, an nkey, or none. */
final class Credentials {
    private static final Pattern SEED = Pattern.compile("(?<![A-Z2-7])SU[A-Z2-7]{56}(?![A-Z2-7])");
    private static final String DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    private static final String PURPOSE = "liftlog-auth-v1";
    private static final int USER = 20 << 3;
    private static final int KEY_BYTES = 32;

    private final String token;
    private final KeyPair nkey;

    private Credentials(String token, KeyPair nkey) {
        this.token = token;
        this.nkey = nkey;
    }

    /** Reads the files that the options name. Errors never show their content. */
    static Credentials of(ScanOptions options) {
        return new Credentials(
                options.tokenFile() == null ? null : token(options.tokenFile()),
                options.nkeyFile() == null ? null : nkey(options.nkeyFile()));
    }

    /**
     * Returns the answer to the daemon's challenge. A token is sent only if the daemon requests
     * one.
     */
    Map<String, Object> proof(Map<String, Object> challenge, byte[] nonce, byte[] certificate) {
        List<?> methods = (List<?>) challenge.get("m");
        if (methods.contains("nkey") && nkey != null) {
            byte[] text = textToSign(nonce, (byte[]) challenge.get("n"),
                    (String) challenge.get("s"), certificate);
            return Map.of("m", "nkey", "u", publicKey(), "g", sign(text));
        }
        if (methods.contains("token") && token != null) {
            return Map.of("m", "token", "t", token);
        }
        for (String method : List.of("certificate", "unix", "anonymous")) {
            if (methods.contains(method)) {
                return Map.of("m", method);
            }
        }
        String wanted = methods.contains("token") && methods.contains("nkey")
                ? "a token or an nkey"
                : methods.contains("token") ? "a token" : "an nkey";
        throw new Failure(Failure.UNAUTHENTICATED, "the server asks for " + wanted,
                "set tokenFile or nkeyFile to a file of a principal named in the ACL file");
    }

    private static String token(String path) {
        String token;
        try {
            token = Files.readString(Path.of(path)).strip();
        } catch (IOException error) {
            throw Failure.invalid("tokenFile='" + path + "' cannot be read: " + reason(error),
                    "the driver's host and every executor need this file");
        }
        if (token.isEmpty()) {
            throw Failure.invalid("tokenFile='" + path + "' is empty");
        }
        return token;
    }

    private static String reason(IOException error) {
        return error instanceof java.nio.file.NoSuchFileException
                ? "No such file or directory"
                : error instanceof java.nio.charset.CharacterCodingException
                        ? "it is not text"
                        : String.valueOf(error.getMessage());
    }

    // --- nkeys ---

    private static KeyPair nkey(String path) {
        Set<String> found = new HashSet<>();
        try {
            byte[] content = Files.readAllBytes(Path.of(path));
            Matcher seeds = SEED.matcher(new String(content, StandardCharsets.ISO_8859_1));
            while (seeds.find()) {
                found.add(seeds.group());
            }
        } catch (IOException error) {
            throw Failure.invalid("cannot read the nkey " + path + ": " + reason(error));
        }
        if (found.size() != 1) {
            throw Failure.invalid(path + " holds no nkey seed: expected exactly one nkey seed of a"
                    + " user (SU and 56 more letters and digits)");
        }
        byte[] raw = decoded(found.iterator().next());
        int end = raw.length - 2;
        int crc = crc16(raw, end);
        if ((raw[end] & 0xFF | (raw[end + 1] & 0xFF) << 8) != crc) {
            throw Failure.invalid(path + " holds no nkey seed: its checksum is wrong: a character"
                    + " is missing or mistyped");
        }
        return pair(Arrays.copyOfRange(raw, 2, end));
    }

    /**
     * Returns the key pair of a seed. The generator takes its private key from a source of random
     * bytes, which here returns the seed.
     */
    private static KeyPair pair(byte[] seed) {
        try {
            KeyPairGenerator generator = KeyPairGenerator.getInstance("Ed25519");
            generator.initialize(255, new SecureRandom() {
                private static final long serialVersionUID = 1L;

                @Override
                public void nextBytes(byte[] bytes) {
                    System.arraycopy(seed, 0, bytes, 0, Math.min(seed.length, bytes.length));
                }
            });
            return generator.generateKeyPair();
        } catch (GeneralSecurityException error) {
            throw new IllegalStateException("this Java has no Ed25519", error);
        }
    }

    private String publicKey() {
        byte[] encoded = nkey.getPublic().getEncoded(); // X.509; the key is at the end
        byte[] raw = new byte[1 + KEY_BYTES + 2];
        raw[0] = (byte) USER;
        System.arraycopy(encoded, encoded.length - KEY_BYTES, raw, 1, KEY_BYTES);
        int crc = crc16(raw, 1 + KEY_BYTES);
        raw[1 + KEY_BYTES] = (byte) crc;
        raw[2 + KEY_BYTES] = (byte) (crc >> 8);
        return encoded(raw);
    }

    private byte[] sign(byte[] text) {
        try {
            Signature signature = Signature.getInstance("Ed25519");
            signature.initSign(nkey.getPrivate());
            signature.update(text);
            return signature.sign();
        } catch (GeneralSecurityException error) {
            throw new IllegalStateException("this Java has no Ed25519", error);
        }
    }

    /**
     * Returns the text to sign. Its first byte occurs in no UTF-8 text, so the key signs no other
     * text with this content.
     */
    private static byte[] textToSign(
            byte[] nonce, byte[] challenge, String serverId, byte[] certificate) {
        ByteArrayOutputStream text = new ByteArrayOutputStream();
        text.write(0xFF);
        text.writeBytes(PURPOSE.getBytes(StandardCharsets.US_ASCII));
        byte[] shown = certificate == null ? new byte[0] : sha256(certificate);
        for (byte[] part : List.of(
                nonce, challenge, serverId.getBytes(StandardCharsets.UTF_8), shown)) {
            text.write(part.length);
            text.write(part.length >> 8);
            text.writeBytes(part);
        }
        return text.toByteArray();
    }

    private static byte[] sha256(byte[] bytes) {
        try {
            return MessageDigest.getInstance("SHA-256").digest(bytes);
        } catch (GeneralSecurityException error) {
            throw new IllegalStateException(error);
        }
    }

    private static byte[] decoded(String base32) {
        byte[] found = new byte[base32.length() * 5 / 8];
        int bits = 0;
        int held = 0;
        int count = 0;
        for (char one : base32.toCharArray()) {
            held = held << 5 | DIGITS.indexOf(one);
            bits += 5;
            if (bits >= 8) {
                bits -= 8;
                found[count++] = (byte) (held >> bits);
                held &= (1 << bits) - 1;
            }
        }
        return found;
    }

    private static String encoded(byte[] raw) {
        StringBuilder text = new StringBuilder();
        int bits = 0;
        int held = 0;
        for (byte one : raw) {
            held = held << 8 | one & 0xFF;
            bits += 8;
            while (bits >= 5) {
                bits -= 5;
                text.append(DIGITS.charAt(held >> bits & 31));
                held &= (1 << bits) - 1;
            }
        }
        if (bits > 0) {
            text.append(DIGITS.charAt(held << 5 - bits & 31));
        }
        return text.toString();
    }

    /** The CRC-16 of variant XMODEM, which nkeys contain. */
    private static int crc16(byte[] bytes, int length) {
        int crc = 0;
        for (int i = 0; i < length; i++) {
            crc ^= (bytes[i] & 0xFF) << 8;
            for (int bit = 0; bit < 8; bit++) {
                crc = (crc & 0x8000) != 0 ? crc << 1 ^ 0x1021 : crc << 1;
            }
        }
        return crc & 0xFFFF;
    }
}
