/** One consumer of a group, with its application. */
interface Member {
    /** Join the group and read until {@link #leave}; may be called once. */
    void join();

    /** Leave the group; returns when the consumer is closed. */
    void leave();

    /** Keep the application busy with its next records for this time. */
    void block(long milliseconds);
}
