package liftlog.wire;

import liftlog.records.Failure;

/**
 * The node does not lead, and another node of the cluster answers the request. {@code address} is
 * the address of that node; null if there is none.
 */
final class NotLeader extends Failure {
    private static final long serialVersionUID = 1L;

    private final String address;

    NotLeader(String reason, String hint, String address) {
        super(NOT_LEADER, reason, hint);
        this.address = address == null || address.isEmpty() ? null : address;
    }

    String address() {
        return address;
    }
}
