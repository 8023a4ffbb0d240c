import org.apache.helix.NotificationContext;
import org.apache.helix.model.Message;
import org.apache.helix.participant.statemachine.StateModel;
import org.apache.helix.participant.statemachine.StateModelFactory;
import org.apache.helix.participant.statemachine.StateModelInfo;
import org.apache.helix.participant.statemachine.Transition;
import org.apache.kafka.common.TopicPartition;

/** One topic partition at one member, as Helix drives it: a resource is a topic. */
@StateModelInfo(initialState = "OFFLINE", states = {"ONLINE", "OFFLINE"})
public final class HelixPartition extends StateModel {
    private final HelixMember member;
    private final TopicPartition partition;

    private HelixPartition(HelixMember member, TopicPartition partition) {
        this.member = member;
        this.partition = partition;
    }

    @Transition(from = "OFFLINE", to = "ONLINE")
    public void onBecomeOnlineFromOffline(Message message, NotificationContext context) {
        member.change(partition, HelixMember.Order.ONLINE);
    }

    @Transition(from = "ONLINE", to = "OFFLINE")
    public void onBecomeOfflineFromOnline(Message message, NotificationContext context) {
        member.change(partition, HelixMember.Order.OFFLINE);
    }

    @Transition(from = "OFFLINE", to = "DROPPED")
    public void onBecomeDroppedFromOffline(Message message, NotificationContext context) {}

    /** The session has ended: another member may own the partition already. */
    @Override
    public void reset() {
        member.change(partition, HelixMember.Order.LOST);
    }

    /** Return a partition's name within its resource. */
    static String name(String topic, int partition) {
        return topic + "_" + partition;
    }

    /** Makes the partitions of one member. */
    static final class Factory extends StateModelFactory<HelixPartition> {
        private final HelixMember member;

        Factory(HelixMember member) {
            this.member = member;
        }

        @Override
        public HelixPartition createNewStateModel(String resource, String name) {
            int number = Integer.parseInt(name.substring(name.lastIndexOf('_') + 1));
            return new HelixPartition(member, new TopicPartition(resource, number));
        }
    }
}
