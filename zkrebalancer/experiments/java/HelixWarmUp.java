import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.helix.HelixManager;
import org.apache.helix.HelixManagerFactory;
import org.apache.helix.InstanceType;
import org.apache.helix.NotificationContext;
import org.apache.helix.model.Message;
import org.apache.helix.participant.statemachine.StateModel;
import org.apache.helix.participant.statemachine.StateModelFactory;
import org.apache.helix.participant.statemachine.StateModelInfo;
import org.apache.helix.participant.statemachine.Transition;

/** Loads the classes of a rebalance, so that the first one does not wait for the disk: in a cluster of its own. */
final class HelixWarmUp {
    private static final long LIMIT_S = 20;

    private HelixWarmUp() {}

    static void run(String zookeeper, Map<String, String> settings) {
        String cluster = "warm-up-" + ProcessHandle.current().pid();
        CountDownLatch isOnline = new CountDownLatch(1);
        try (HelixCluster own = new HelixCluster(zookeeper, cluster, new HashMap<>(settings), Map.of())) {
            own.setUp();
            own.setTopic("warm-up", 1);
            HelixManager controller =
                    HelixManagerFactory.getZKHelixManager(cluster, "controller", InstanceType.CONTROLLER, zookeeper);
            HelixManager member =
                    HelixManagerFactory.getZKHelixManager(cluster, "member", InstanceType.PARTICIPANT, zookeeper);
            member.getStateMachineEngine().registerStateModelFactory(HelixCluster.MODEL, new StateModelFactory<Signal>() {
                @Override
                public Signal createNewStateModel(String resource, String partition) {
                    return new Signal(isOnline);
                }
            });
            try {
                controller.connect();
                member.connect();
                isOnline.await(LIMIT_S, TimeUnit.SECONDS);
            } catch (Exception error) { // declared so
                throw new IllegalStateException(error);
            } finally {
                member.disconnect();
                controller.disconnect();
            }
            own.drop();
        }
    }

    /** Tells when its partition is ONLINE. */
    @StateModelInfo(initialState = "OFFLINE", states = {"ONLINE", "OFFLINE"})
    public static final class Signal extends StateModel {
        private final CountDownLatch isOnline;

        private Signal(CountDownLatch isOnline) {
            this.isOnline = isOnline;
        }

        @Transition(from = "OFFLINE", to = "ONLINE")
        public void onBecomeOnlineFromOffline(Message message, NotificationContext context) {
            isOnline.countDown();
        }

        @Transition(from = "ONLINE", to = "OFFLINE")
        public void onBecomeOfflineFromOnline(Message message, NotificationContext context) {}

        @Override
        public void reset() {}
    }
}
